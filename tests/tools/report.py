"""Tests of `pleat report`: report.py PLEAT SNAPSHOT [SHARED]. In a browser too where chromium is
there. Recordings in SHARED/traces, or $PLEAT_SHARED/traces, are drawn as well."""

import gzip
import html
import html.parser
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

import here  # first: it knows where the tests are
import made
import suite

PLEAT, SNAPSHOT = sys.argv[1:3]
SHARED = pathlib.Path(os.environ.get("PLEAT_SHARED") or (sys.argv + [""])[3])
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Runs before the page's own scripts: collects errors, and draws at once instead of with the next
# frame, so that what drawing takes can be measured.
BEFORE = """<script>
window.problems = [];
window.addEventListener('error', (e) => problems.push(String(e.message)));
window.addEventListener('securitypolicyviolation', (e) => problems.push('blocked ' + e.blockedURI));
console.error = (...what) => problems.push(what.join(' '));
window.requestAnimationFrame = (draw) => { draw(performance.now()); return 0; };
</script>"""

# Runs behind them: zooms and points at every view, and leaves what it saw in the document.
BEHIND = """<script>
/* What a person does: find the largest tensor at the peak and where it comes from; compose the curve
 * otherwise; search; find what lies under a chunk; look at seconds. */
function person(key) {
  const at = (id) => document.getElementById(id), did = {};
  const choose = (id, value) => {
    at(id).value = value;
    at(id).dispatchEvent(new Event('change', {bubbles: true}));
  };
  const rows = () => [...at('moment-rows').querySelectorAll('tr')];
  const cellOf = (row, label) => row.querySelector('[data-label="' + label + '"]').textContent;
  at('show-peak').click();
  did.title = at('moment-title').textContent;
  did.rows = rows().length;
  did.largest = cellOf(rows()[0], 'together');
  did.place = cellOf(rows()[0], 'allocated at');
  did.flame = at('flame').querySelectorAll('button').length;
  key(at('curves'), 'Enter');
  did.other = at('moment-title').textContent;
  at('show-peak').click();
  at('moment-search').value = cellOf(rows()[0], 'class');
  at('moment-search').dispatchEvent(new Event('input'));
  did.found = rows().map((row) => cellOf(row, 'class'));
  at('moment-search').value = '';
  at('moment-search').dispatchEvent(new Event('input'));
  did.ways = [...at('compose').options].map((o) => o.value);
  for (const way of did.ways) {
    choose('compose', way);
    if (!at('compose-keys').childElementCount) problems.push('no areas by ' + way);
  }
  choose('compose', 'class');
  choose('unit', 'seconds');
  key(at('curves'), '+');
  did.seconds = at('curves-read').textContent;
  choose('unit', 'events');
  key(at('curves'), '0');
  const box = at('map-canvas').getBoundingClientRect();
  for (let i = 1; i < 20 && !at('tenant-title').textContent; i++)
    at('map-canvas').dispatchEvent(new MouseEvent('click', {bubbles: true,
      clientX: box.left + box.width / 2, clientY: box.top + 20 + (box.height - 60) * i / 20}));
  did.tenants = at('tenant-title').textContent;
  did.below = at('tenant-rows').childElementCount;
  return did;
}
(() => {
  const out = {problems, drawn_ms: performance.now(), views: {}};
  const timed = (f) => { const begun = performance.now(); f(); return performance.now() - begun; };
  const key = (at, name) => timed(() => at.dispatchEvent(
      new KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true})));
  const image = (at) => [...(at.tagName === 'CANVAS' ? [at] : at.querySelectorAll('canvas'))]
      .map((c) => c.toDataURL()).join();
  for (const [view, id] of [['run-time', 'run-time'], ['run-steps', 'run-steps'],
                            ['curves', 'curves'], ['left', 'left'], ['right', 'right'],
                            ['map', 'map-canvas'], ['chunks', 'map-canvas']]) {
    if (!document.getElementById(id)) continue;
    if (view === 'chunks') document.querySelector('input[value=chunks]').click();
    const at = document.getElementById(id), seen = {}, all = image(at);
    if (at.scrollWidth > document.documentElement.clientWidth) problems.push(id + ' is too wide');
    seen.zoom_ms = Math.max(key(at, '+'), key(at, '+'), key(at, 'ArrowRight'));
    seen.zoomed = image(at) !== all;
    const told = document.getElementById((view === 'chunks' ? 'map' : view) + '-read');
    seen.read = told.textContent.trim();
    key(at, '0');
    seen.restored = image(at).length > 1000;
    const box = at.getBoundingClientRect(), hover = (x, y) => timed(() => {
      const where = {bubbles: true, clientX: box.left + x, clientY: box.top + y};
      const target = at.tagName === 'CANVAS' ? at : at.querySelectorAll('canvas')[1] || at;
      target.dispatchEvent(new PointerEvent('pointermove', where));
      target.dispatchEvent(new MouseEvent('mousemove', where));
    });
    seen.hover_ms = 0;
    for (let i = 1; i < 10; i++)
      seen.hover_ms = Math.max(seen.hover_ms, hover(box.width * i / 10, box.height * i / 12));
    seen.hovered = told.textContent.trim();
    /* One finger is the page's, two are the plot's. */
    const finger = (id, x) => new Touch({identifier: id, target: at, clientX: box.left + x, clientY: box.top + 50});
    const touch = (kind, ...xs) => {
      const touches = xs.map((x, i) => finger(i, x));
      const event = new TouchEvent(kind, {touches, targetTouches: touches, changedTouches: touches, bubbles: true, cancelable: true});
      (at.querySelector('canvas:last-of-type') || at).dispatchEvent(event);
      return event.defaultPrevented;
    };
    seen.scrolls = !touch('touchstart', 100) && !touch('touchmove', 120) && getComputedStyle(at).touchAction === 'pan-y';
    const before = image(at);
    seen.pinches = touch('touchstart', 100, 140) && touch('touchmove', 60, 200) && image(at) !== before;
    key(at, '0');
    out.views[view] = seen;
  }
  if (document.getElementById('moment')) out.person = person(key);
  out.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const pre = document.createElement('pre');
  pre.id = 'seen';
  pre.textContent = encodeURIComponent(JSON.stringify(out));
  document.body.append(pre);
})();
</script>"""


def run(*arguments):
    return subprocess.run([PLEAT, *arguments], capture_output=True, text=True, check=False)


def annotated(event):
    """The event, and behind an allocation what torch 2.14 writes of an annotation."""
    said = dict(event, action="annotate", user_metadata=f"of {event['size']}<", frames=[])
    return [event, said] if event["action"] == "alloc" else [event]


class Reader(html.parser.HTMLParser):
    """The figures in a page's cells, its JSON, and what it refers to."""

    def __init__(self):
        super().__init__()
        self.cells, self.rows, self.json, self.references = {}, {}, {}, []
        self.script = None

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "data-key" in found:
            self.cells[found["data-policy"], found["data-key"]] = float(found["data-value"])
        if "data-row" in found:
            self.rows[int(found["data-row"])] = int(found["data-value"])
        self.script = found.get("id") if tag == "script" else None
        self.references += [found[a] for a in ("src", "href") if a in found]
        self.references += [tag] if tag == "link" else []

    def handle_endtag(self, tag):
        self.script = None

    def handle_data(self, data):
        if self.script in ("figures-json", "data-json"):
            self.json[self.script] = json.loads(data)


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "report.html")
        ran = run("report", SNAPSHOT, "-o", cls.path, "--json")
        if ran.returncode == 5 and "libjs-dygraphs" in ran.stderr:
            raise unittest.SkipTest(ran.stderr)
        assert ran.returncode == 0, ran.stderr
        cls.figures = json.loads(ran.stdout)
        with open(cls.path, encoding="utf-8") as file:
            cls.text = file.read()
        cls.reader = Reader()
        cls.reader.feed(cls.text)
        cls.log = os.path.join(cls.folder.name, "run.log")
        subprocess.run([PLEAT, "replay", SNAPSHOT, "--repeat", "50"], check=True,
                       stdout=subprocess.DEVNULL,
                       env={**os.environ, "PLEAT_CONF": f"log:{cls.log},log_ms:1"})

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_policy_that_ran_out_of_memory_is_said_to_have(self):
        path = os.path.join(self.folder.name, "small.html")
        ran = run("report", SNAPSHOT, "-o", path, "--json", "-p", "native,pleat", "-d", "9660MiB", "-P", self.plan())
        self.assertEqual(ran.returncode, 0, ran.stderr)
        native, pleat = json.loads(ran.stdout)["policies"]
        self.assertEqual((native["oom"], pleat["oom"]), (True, False))
        reader = Reader()
        with open(path, encoding="utf-8") as file:
            text = file.read()
        reader.feed(text)
        self.assertIn("<th scope=col>native<br>(out of memory)</th>", text)
        self.assertIn("<th scope=col>pleat</th>", text)
        for key in ("steady_efficiency", "steady_driver_calls", "waste_bytes"):
            self.assertNotIn(("native", key), reader.cells)
            self.assertIn(("pleat", key), reader.cells)
        self.assertEqual(reader.cells["native", "peak_physical_bytes"], native["peak_physical_bytes"])

    def plan(self):
        """A plan of the job."""
        path = os.path.join(self.folder.name, "job.plan")
        if not os.path.exists(path):
            self.assertEqual(run("plan", SNAPSHOT, "-o", path).returncode, 0)
        return path

    def test_figures_in_the_page_are_those_of_json(self):
        policies = {p["policy"]: p for p in self.figures["policies"]}
        self.assertEqual(list(policies), ["native", "expandable", "gmlake", "stweaver", "pleat"])
        policies["plan"] = self.figures["plan"]["gap"]
        self.assertEqual(self.reader.json["figures-json"], self.figures)
        self.assertGreater(len(self.reader.cells), 5 * 14)
        for (policy, key), value in self.reader.cells.items():
            self.assertAlmostEqual(policies[policy][key], value, msg=f"{policy} {key}",
                                   delta=1e-6 * abs(value))
        self.assertEqual(self.reader.rows,
                         {i: g["bytes"] for i, g in enumerate(self.figures["peak"])})

    def test_figures_agree_with_one_another(self):
        live = self.figures["max_live_bytes"]
        for policy in self.figures["policies"]:
            self.assertEqual(policy["peak_live_bytes"], live)
            self.assertEqual(policy["peak_physical_bytes"] - live, policy["waste_bytes"])
        plan = self.figures["plan"]
        self.assertEqual(plan["max_live_bytes"] + sum(plan["gap"].values()), plan["physical_bytes"])
        self.assertLessEqual(sum(g["bytes"] for g in self.figures["peak"]), live)

    framed = None

    def with_frames(self):
        """The page of the job with stacks, and its figures."""
        if Report.framed is None:
            Report.framed = self.made_with_frames()
        return Report.framed

    def made_with_frames(self):
        with gzip.open(SNAPSHOT) as file:
            snapshot = pickle.load(file)
        for event in snapshot["device_traces"][0]:
            event["frames"] = [
                {"name": "malloc", "filename": "??", "line": 0},
                {"name": "forward", "filename": "/v/site-packages/torch/nn/linear.py", "line": 7},
                {"name": f"layer<{event['size'] % 7}>", "filename": "/me/net/block.py", "line": 40}]
        snapshot["device_traces"][0] = [said for event in snapshot["device_traces"][0] for said in annotated(event)]
        recording = os.path.join(self.folder.name, "frames.pickle")
        with open(recording, "wb") as file:
            pickle.dump(snapshot, file)
        trace = os.path.join(self.folder.name, "frames.trace")
        self.assertEqual(run("import", recording, "-o", trace).returncode, 0)
        page = os.path.join(self.folder.name, "frames.html")
        ran = run("report", trace, "-o", page, "--json", "--policies", "native")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        with open(page, encoding="utf-8") as file:
            return file.read(), json.loads(ran.stdout)

    def test_places_in_the_program_are_shown_where_they_are_known(self):
        text, told = self.with_frames()
        peak = told["peak"]
        for group in peak:
            place = f"layer<{group['size'] % 7}> (/me/net/block.py:40)"
            self.assertEqual(group["site"], f'"of {group["size"]}<"\nforward (torch/nn/linear.py:7)\n' + place)
        place = html.escape(f"layer<{peak[0]['size'] % 7}> (/me/net/block.py:40) \"of {peak[0]['size']}<\"")
        self.assertIn(f"<summary>{place}</summary>", text)
        explained = run("explain", os.path.join(self.folder.name, "frames.trace"))
        self.assertEqual(explained.returncode, 0, explained.stderr)
        self.assertIn(f"at layer<{peak[0]['size'] % 7}> (/me/net/block.py:40), annotated \"of {peak[0]['size']}<\"",
                      explained.stdout)

    def report_of_run(self, *arguments):
        path = os.path.join(self.folder.name, "run.html")
        ran = run("report", "--log", self.log, "-o", path, "--json", *arguments)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        reader = Reader()
        with open(path, encoding="utf-8") as file:
            text = file.read()
        reader.feed(text)
        return json.loads(ran.stdout), reader, text

    def test_a_log_writes_no_html(self):
        with open(self.log, "rb") as file:
            data = file.read()
        name = b"\xa5pleat"  # msgpack's
        self.assertEqual(data.count(name), 1)
        other, path = (os.path.join(self.folder.name, name) for name in ("other.log", "other.html"))
        with open(other, "wb") as file:
            file.write(data.replace(name, b"\xa5<b>&x"))
        self.assertEqual(run("report", "--log", other, "-o", path).returncode, 0)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read().count(", policy &lt;b&gt;&amp;x: <code>"), 1)

    def test_a_run_is_held_against_its_plan(self):
        figures, reader, _ = self.report_of_run()
        self.assertEqual(list(figures), ["run"])
        self.assertIsNone(figures["run"]["planned"]["live_bytes"])
        live = self.figures["max_live_bytes"]
        self.assertAlmostEqual(figures["run"]["whole"]["live_bytes"], live, delta=live * 1e-5)
        self.assertEqual((figures["run"]["status"], figures["run"]["iterations"]), ("ended", 54))
        both, read, _ = self.report_of_run(SNAPSHOT)
        self.assertEqual(both["run"]["planned"]["physical_bytes"], both["plan"]["physical_bytes"])
        self.assertEqual(both["run"]["whole"], figures["run"]["whole"])
        self.assertEqual(read.json["figures-json"], both)
        shown = {key: value for key, value in read.cells.items() if key[0].startswith("run.")}
        known = {(f"run.{side}", key): value for side in ("planned", "last", "whole")
                 for key, value in both["run"][side].items() if value is not None}
        self.assertEqual(shown.keys(), known.keys())
        self.assertGreater(len(shown), 20)
        for cell, value in shown.items():
            self.assertAlmostEqual(known[cell], value, msg=cell, delta=1e-6 * abs(value))

    def test_a_plan_that_is_given_has_its_gap_too(self):
        page = os.path.join(self.folder.name, "planned.html")
        ran = run("report", SNAPSHOT, "-P", self.plan(), "-o", page, "--json", "-p", "native")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        told = json.loads(ran.stdout)["plan"]
        self.assertEqual(told["max_live_bytes"] + sum(told["gap"].values()), told["physical_bytes"])
        self.assertEqual(sum(told["live_at_peak"].values()), told["max_live_bytes"])
        self.assertEqual(told["live_at_peak"], self.figures["plan"]["live_at_peak"])
        reader = Reader()
        with open(page, encoding="utf-8") as file:
            reader.feed(file.read())
        shown = {key: value for (policy, key), value in reader.cells.items() if policy == "plan"}
        self.assertEqual(shown, told["gap"])

    def test_a_class_has_one_name(self):
        """That of `pleat help words`, which explains it; what is small is the page's own."""
        (names,), (legend,) = (re.findall(r"const %s = \[(.*?)\];" % name, self.text, re.DOTALL)
                               for name in ("classes", "classNames"))
        names, legend = (re.findall("'(.*?)'", listed) for listed in (names, legend))
        words = dict(re.split("  +", line, maxsplit=1) for line in run("help", "words").stdout.splitlines())
        self.assertLessEqual({*names} - {"small"}, {*words})
        self.assertEqual([line.split(":")[0] for line in legend], names)
        self.assertIn("persistent: " + words["persistent"], legend)

    def test_page_needs_nothing_else(self):
        self.assertEqual([r for r in self.reader.references if not r.startswith("#")], [])
        self.assertIn("default-src 'none'", self.text)
        self.assertLess(len(self.text), 15e6)

    def test_only_a_page_that_is_there_can_be_opened(self):
        path = os.path.join(self.folder.name, "run.html")
        for output, said in ((path, path + ": open it in a browser\n"), ("/dev/null", "")):
            done = run("report", "--log", self.log, "-o", output)
            self.assertEqual((done.returncode, done.stdout), (0, said), done.stderr)

    def test_what_explain_says_the_page_says(self):
        job, path = (os.path.join(self.folder.name, "small" + end) for end in (".pickle", "-page.html"))
        made.record(job, [4] * 5)
        said = run("explain", job, "-d", "900MiB").stdout
        run("report", job, "-d", "900MiB", "-o", path)
        with open(path, encoding="utf-8") as file:
            page = file.read()
        for words in ("Under Pleat the microbatch must shrink to ", "native allocator the microbatch must shrink to "):
            self.assertIn(words, said)
            self.assertTrue(words.replace("Under", "under") in page, words)
        self.assertTrue("<h2>The plan: what lies where in one iteration</h2>" in page)
        made.record(job, [4] * 5, loads=True)
        run("report", job, "-o", path)
        with open(path, encoding="utf-8") as file:
            self.assertTrue("<h2>The plan: what lies where in two iterations, which take turns</h2>" in file.read())
        # A table of lifetimes tells no iterations.
        table = os.path.join(self.folder.name, "t.csv")
        with open(table, "w", encoding="ascii") as file:
            file.write("id,lower,upper,size\n1,0,4,1000000\n2,1,3,2000000\n")
        run("report", table, "-o", path)
        with open(path, encoding="utf-8") as file:
            self.assertTrue("are live at once, in 2 tensors: no allocator" in file.read())

    def test_bad_use(self):
        for arguments in [[], [SNAPSHOT], [SNAPSHOT, "-o", self.path, "-p", "none"],
                          [SNAPSHOT, SNAPSHOT, "-o", self.path], [SNAPSHOT, "-B", "much", "-j"]]:
            self.assertEqual(run("report", *arguments).returncode, 2, arguments)
        self.assertEqual(run("report", self.path, "-j").returncode, 3)
        self.assertIn("usage: pleat report", run("report", "--help").stdout)

    def test_recordings_of_every_kind_are_drawn(self):
        recordings = sorted((SHARED / "traces").glob("*.pickle.gz"))
        if not recordings:
            self.skipTest("no recordings")
        for recording in recordings:
            path = os.path.join(self.folder.name, "other.html")
            ran = run("report", str(recording), "-o", path, "--json")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertLess(os.path.getsize(path), 15e6)
            self.assertFalse(any(p["oom"] for p in json.loads(ran.stdout)["policies"]))

    def see(self, page, width, height):
        copy = os.path.join(self.folder.name, f"driven-{width}.html")
        text = page.replace("<title>", BEFORE + "<title>", 1)
        end = text.rindex("</body>")
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text[:end] + BEHIND + text[end:])
        ran = subprocess.run(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             f"--user-data-dir={self.folder.name}/browser", f"--window-size={width},{height}",
             "--dump-dom", "file://" + copy],
            capture_output=True, text=True, check=False, timeout=120)
        found = re.search(r'<pre id="seen">([^<]*)</pre>', ran.stdout)
        self.assertIsNotNone(found, ran.stderr)
        errors = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
        return json.loads(urllib.parse.unquote(found.group(1))), errors

    @unittest.skipUnless(BROWSER, "no chromium: the page is not looked at in a browser")
    def test_browser_draws_zooms_and_points(self):
        _, _, with_run = self.report_of_run(SNAPSHOT)
        _, _, only_run = self.report_of_run()
        views = ["run-time", "run-steps", "curves", "left", "right", "map", "chunks"]
        wide, wider, narrow = (1280, 800), (1920, 1080), (390, 844)
        # A page with all views at each width, and one with some of them at that where they are most apart from it.
        for page, wanted, sizes in [(self.text, views[2:], [wide]), (with_run, views, [wide, wider, narrow]),
                                    (only_run, views[:2], [narrow])]:
            for width, height in sizes:
                seen = self.drive(page, wanted, width, height)
                if "person" in seen:
                    self.person(seen["person"])

    def person(self, did):
        """What somebody found who looked for it."""
        largest = max(self.figures["peak"], key=lambda g: g["bytes"])
        self.assertEqual(f"{largest['bytes'] / 2**30:.3f} GiB", did["largest"])
        self.assertIn("the peak", did["title"])
        self.assertNotEqual(did["other"], did["title"])
        self.assertGreater(did["rows"], 5)
        self.assertGreater(did["flame"], 5)
        self.assertEqual(did["place"], "(place not recorded)")
        self.assertEqual(len(set(did["found"])), 1)
        self.assertEqual(did["ways"], ["class", "phase", "size"])
        self.assertRegex(did["seconds"], r"^\d+(\.\d+)? s, iteration \d")
        self.assertRegex(did["tenants"], r"(other tensors at other times:|Nothing else uses its chunks\.)$")
        self.assertEqual(did["below"] > 0, "other tensors" in did["tenants"])

    @unittest.skipUnless(BROWSER, "no chromium: the page is not looked at in a browser")
    def test_the_largest_tensor_is_traced_to_its_line(self):
        page = self.with_frames()[0]
        seen = self.drive(page, ["curves", "left", "map", "chunks"], 1280, 800, without=("right",))
        did = seen["person"]
        self.assertRegex(did["place"], r'^layer<\d> \(/me/net/block.py:40\) "of \d+<"$')
        self.assertEqual(did["ways"], ["class", "phase", "place", "function", "module", "annotation", "size"])

    @unittest.skipUnless(BROWSER, "no chromium: the page is not looked at in a browser")
    def test_a_small_table_has_small_units_and_no_phases(self):
        """Curves were in GiB, and what no label told was called scoped."""
        table, page = (os.path.join(self.folder.name, name) for name in ("small.csv", "small.html"))
        with open(table, "w", encoding="utf-8") as file:
            file.write("id,lower,upper,size\n" + "".join(f"{i},{i},{i + 9},{4096 * (i % 7 + 1)}\n" for i in range(64)))
        self.assertEqual(run("report", table, "-o", page).returncode, 0)
        with open(page, encoding="utf-8") as file:
            seen, errors = self.see(file.read(), 1280, 800)
        self.assertEqual((errors, seen["problems"]), ([], []))
        self.assertRegex(seen["views"]["curves"]["read"], r"0\.1\d+ MiB live: within 0\.1\d+; native holds 2\.000")
        self.assertEqual(set(seen["person"]["found"]), {"within"})

    def drive(self, page, wanted, width, height, without=()):
        seen, errors = self.see(page, width, height)
        self.assertEqual([view for view in seen["views"] if view not in without], wanted)
        self.assertEqual(errors, [])
        self.assertEqual(seen["problems"], [])
        self.assertEqual(seen["wide"], 0)
        print(f"{width}x{height}: drawn after {seen['drawn_ms']:.0f} ms")
        for name, view in seen["views"].items():
            self.assertTrue(view["scrolls"], name)
            self.assertTrue(view["pinches"], name)
            print(f"  {name}: zoom {view['zoom_ms']:.1f} ms, hover {view['hover_ms']:.1f} ms")
            self.assertTrue(view["zoomed"], name)
            self.assertTrue(view["restored"], name)
            self.assertRegex(view["read"], r"(event|MiB|chunk|GiB)", name)
            self.assertRegex(view["hovered"], r"(event|MiB|chunk|GiB)", name)
        return seen


if __name__ == "__main__":
    suite.main()
