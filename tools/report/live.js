/* What is live over time: areas composed by class, phase, place or size; what is live at a moment, as
 * a flame graph and a table; two allocators side by side. */

const classes = ['transient', 'scoped', 'crossing', 'persistent', 'dynamic', 'small', 'within'];
const classNames = ['transient: within a phase', 'scoped: freed in a later phase',
  'crossing: freed in the next iteration', 'persistent: there across iterations: weights, optimizer states',
  'dynamic: room for sizes that change (a lane)', 'small: under 1 MiB',
  'within: of one iteration; the recording names no phases'];
const LONGEST = ['persistent', 'crossing', 'scoped', 'transient', 'within'];
const PALETTE = 9, NEVER = 0xffffffff, ROWS_MOST = 200;

/* ---- the requests ---- */

const lives = data.lives && {
  count: data.lives.count,
  alloc: decode(data.lives.alloc, Uint32Array), free: decode(data.lives.free, Uint32Array),
  units: decode(data.lives.units, Uint32Array), phase: decode(data.lives.phase, Uint16Array),
  cls: decode(data.lives.class, Uint8Array),
  site: data.lives.site ? decode(data.lives.site, Uint32Array) : null,
};
const bytesOf = (i) => lives.units[i] * UNIT;
const phaseOf = (i) => data.names[lives.phase[i]] || '(no phase)';

/* Frames of a request's stack, innermost first, before them its annotations, in double quotes; none where the
 * recording has none. */
const stackOf = (i) => (lives.site ? data.stacks[lives.site[i]] || [] : []);
const isAnnotation = (text) => text.startsWith('"');
const annotationsOf = (i) => stackOf(i).map((n) => data.frames[n]).filter(isAnnotation).join(', ');
const isTorch = (text) => text.includes(' (torch/');
/* The frame that says most: the innermost outside of PyTorch. */
function placeOf(i) {
  const frames = stackOf(i).map((n) => data.frames[n]).filter((text) => !isAnnotation(text));
  return frames.find((text) => !isTorch(text)) || frames[0] || '(place not recorded)';
}
const placeAndAnnotations = (i) => [placeOf(i), annotationsOf(i)].filter((text) => text).join(' ');
/* "name (file)": without the line. */
const functionOf = (i) => placeOf(i).replace(/:\d+\)$/, ')');
/* The file or module that the place is in. */
function moduleOf(i) {
  const found = /\((.*?)(?::\d+)?\)$/.exec(placeOf(i));
  return found ? found[1] : placeOf(i);
}
const classOf = (i) => classes[lives.cls[i]];

/* At each event: the request, and whether it is freed there. */
function makeOrder() {
  const order = new Int32Array(data.events);
  for (let i = 0; i < lives.count; i++) {
    order[lives.alloc[i]] = 2 * i;
    if (lives.free[i] !== NEVER) order[lives.free[i]] = 2 * i + 1;
  }
  return order;
}

const WAYS = [
  ['class', 'how long it lives', (i) => classOf(i)],
  ['phase', 'phase allocated in', (i) => phaseOf(i)],
  ['place', 'place in the program', (i) => placeOf(i)],
  ['function', 'function', (i) => functionOf(i)],
  ['module', 'module (file)', (i) => moduleOf(i)],
  ['annotation', 'annotation', (i) => annotationsOf(i) || '(no annotation)'],
  ['size', 'size of the tensor', (i) => size(bytesOf(i))],
];

/* Each request's group, the groups of most bytes at the peak by themselves, the others in the last. */
function compose(way) {
  const key = WAYS.find((w) => w[0] === way)[2], known = new Map(), kinds = new Uint32Array(lives.count);
  const bytes = [];
  for (let i = 0; i < lives.count; i++) {
    const name = key(i);
    if (!known.has(name)) { known.set(name, known.size); bytes.push(0); }
    kinds[i] = known.get(name);
    if (lives.alloc[i] <= data.peak && lives.free[i] > data.peak) bytes[kinds[i]] += bytesOf(i);
  }
  const names = [...known.keys()], ranked = names.map((_, k) => k).sort((a, b) => bytes[b] - bytes[a]);
  if (way === 'class') ranked.sort((a, b) => LONGEST.indexOf(names[a]) - LONGEST.indexOf(names[b]));
  const kept = ranked.slice(0, names.length > PALETTE ? PALETTE - 1 : PALETTE);
  const rank = new Uint8Array(names.length).fill(kept.length);
  kept.forEach((k, r) => { rank[k] = r; });
  const of = new Uint8Array(lives.count);
  for (let i = 0; i < lives.count; i++) of[i] = rank[kinds[i]];
  const shown = kept.map((k) => names[k]);
  if (names.length > kept.length) shown.push(`${count(names.length - kept.length)} others`);
  return { names: shown, of };
}

const fillOf = (way, name, k) => (way === 'class' && classes.includes(name) ? name : `area${k % PALETTE}`);

/* ---- the curve ---- */

const live = { way: 'class', order: null, made: {}, graph: null, at: null };

/* In each of so many columns over [from, to], the moment of most bytes and its groups' sums:
 * [event, top of the lowest group, ..., of the uppermost, physical of each allocator ...]. dygraphs
 * paints the first series last, so that each area covers what is higher. */
function liveRows(from, to, columns) {
  const { names, of } = live.made[live.way], sums = new Float64Array(names.length), out = [];
  const first = Math.floor(from), last = Math.min(Math.ceil(to), data.events);
  const step = Math.max(1, (last - first) / columns);
  let total = 0, most = -1, at = first, kept = sums.slice(), next = first + step;
  const put = () => {
    if (most < 0) return;
    const row = [at];
    let sum = 0;
    for (const bytes of kept) row.push((sum += bytes) / SCALE);
    for (const c of held) row.push(heldAt(c, at, step));
    out.push(row);
    most = -1;
  };
  for (let event = 0; event < last; event++) {
    const code = live.order[event], i = code >> 1, bytes = bytesOf(i);
    total += code & 1 ? -bytes : bytes;
    sums[of[i]] += code & 1 ? -bytes : bytes;
    if (event < first) continue;
    if (event >= next) { put(); next += step * Math.max(1, Math.floor((event - next) / step) + 1); }
    if (total > most) { most = total; at = event; kept.set(sums); }
  }
  put();
  return out.length ? out : [[first, ...names.map(() => 0), ...held.map(() => null)]];
}

/* What each allocator holds. */
const held = (data.policies || []).map((p) => ({
  name: p.name, low: decode(p.low, Float32Array), high: decode(p.high, Float32Array),
  shown: p.name === 'native' || p.name === 'pleat',
}));
/* The most in the buckets of so many events from one on, in the curves' unit; null: it had run out of memory. */
function heldAt(curve, event, step) {
  const first = clamp(Math.floor(event * data.buckets / data.events), 0, data.buckets - 1);
  const last = clamp(Math.floor((event + step) * data.buckets / data.events), first, data.buckets - 1);
  let most = -1;
  for (let b = first; b <= last; b++) most = Math.max(most, curve.high[b]);
  return most < 0 ? null : most / SCALE;
}

function readLive(row) {
  const { names } = live.made[live.way], event = row[0], parts = [];
  let below = 0;
  names.forEach((n, k) => {
    const own = row[1 + k] - below;
    below = row[1 + k];
    if (own > 0.0005) parts.push(`${n} ${own.toFixed(3)}`);
  });
  const holds = held.map((c, k) => [c, row[names.length + 1 + k]]).filter((h) => h[0].shown && h[1] !== null)
    .map((h) => `${h[0].name} holds ${h[1].toFixed(3)}`);
  byId('curves-read').textContent = `${moment(event)}, iteration ${iterationAt(event)}, phase ` +
    `${phaseName(runAt(event))}: ${row[names.length].toFixed(3)} ${SCALE_NAME} live: ${parts.join(', ')}` +
    (holds.length ? `; ${holds.join(', ')}` : '');
}

/* Iterations' beginnings, and the peak, under the areas. */
function drawMarks(context, area, g) {
  context.strokeStyle = colour('soft');
  context.setLineDash([4, 4]);
  const line = (event, y) => {
    const x = g.toDomXCoord(event);
    if (x < area.x || x > area.x + area.w) return null;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x, area.y + area.h);
    context.stroke();
    return x;
  };
  for (const mark of marks) line(mark, area.y);
  context.setLineDash([]);
  context.strokeStyle = context.fillStyle = colour('text');
  context.font = '12px system-ui, sans-serif';
  for (const [event, name] of [[data.peak, 'peak'], ...(live.at === null || live.at === data.peak ? [] : [[live.at, 'chosen']])]) {
    const x = line(event, area.y + 14);
    context.textAlign = x !== null && x > area.x + area.w - 40 ? 'right' : 'left';
    if (x !== null) context.fillText(name, x + (context.textAlign === 'left' ? 3 : -3), area.y + 11);
  }
}

/* The strip under a picture: one box a phase, named where there is room; iterations as ticks. */
function phaseStrip(canvas, runs, from, to, area, ticks) {
  const context = prepare(canvas), height = canvas.clientHeight;
  const x = (event) => area.x + (event - from) / (to - from) * area.w;
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  runs((begin, end, name, k) => {
    const left = Math.max(x(begin), area.x), right = Math.min(x(end), area.x + area.w);
    if (right - left < 0.5) return;
    context.fillStyle = colour(k % 2 ? 'panel' : 'line');
    context.fillRect(left, 0, right - left, height);
    if (right - left > context.measureText(name).width + 6) {
      context.fillStyle = colour('text');
      context.fillText(name, left + 3, height / 2);
    }
  });
  context.fillStyle = colour('text');
  for (const tick of ticks) if (tick >= from && tick <= to) context.fillRect(x(tick), 0, 1.5, height);
}

function drawPhases(g) {
  const [from, to] = g.xAxisRange(), runs = phaseRuns.length / 2;
  phaseStrip(byId('phases'), (put) => {
    for (let r = runAt(from); r < runs && phaseRuns[2 * r] < to; r++)
      put(phaseRuns[2 * r], r + 1 < runs ? phaseRuns[2 * r + 2] : data.events, phaseName(r),
          phaseRuns[2 * r + 1]);
  }, from, to, g.getArea(), marks);
}

function makeLive() {
  live.order = makeOrder();
  const choose = byId('compose');
  for (const [value, text] of WAYS) {
    if (['place', 'function', 'module'].includes(value) && !lives.site) continue;
    if (value === 'annotation' && !(data.frames || []).some(isAnnotation)) continue;
    choose.append(new Option(text, value));
  }
  const drawn = () => {
    const { names } = live.made[live.way], fills = names.map((n, k) => colour(fillOf(live.way, n, k)));
    return [...fills, ...held.map((c) => colour(c.name))];
  };
  const series = () => {
    const out = {}, { names } = live.made[live.way];
    labels().slice(1).forEach((label, k) => {
      out[label] = k < names.length ? { fillGraph: true, strokeWidth: 0.5 } : { fillGraph: false, strokeWidth: 2 };
    });
    return out;
  };
  const labels = () => {
    const { names } = live.made[live.way];
    return ['event', ...names.map((n, k) => `${k} ${n}`), ...held.map((c) => `${c.name}, physical`)];
  };
  const seen = () => [...live.made[live.way].names.map(() => true), ...held.map((c) => c.shown)];
  live.made.class = compose('class');
  live.graph = plot('curves', {
    least: 0, most: data.events, narrow: 64, rows: liveRows, labels: labels(), colours: drawn,
    shown: seen(), tick: tickOf, read: readLive, chosen: (x) => showMoment(x),
    more: { customBars: false, fillAlpha: 1, series: series(), xlabel: '', underlayCallback: drawMarks,
            drawCallback: drawPhases },
  });
  const change = () => {
    live.way = choose.value;
    live.made[live.way] = live.made[live.way] || compose(live.way);
    const range = live.graph.at();
    live.graph.graph.updateOptions({ file: [[0, ...labels().slice(1).map(() => 0)]], labels: labels(),
                                     visibility: seen(), series: series(), colors: drawn() }, true);
    live.graph.show(...range);
    showKeys();
    if (live.at !== null) showMoment(live.at);
  };
  choose.addEventListener('change', change);
  held.forEach((c) => {
    const label = document.createElement('label'), tick = document.createElement('input');
    tick.type = 'checkbox';
    tick.checked = c.shown;
    tick.addEventListener('change', () => { c.shown = tick.checked; live.graph.graph.updateOptions({ visibility: seen() }); });
    label.append(tick, swatch(c.name), `${c.name}, physical`);
    byId('curves-toggles').append(label);
  });
  showKeys();
  byId('show-peak').addEventListener('click', () => showMoment(data.peak));
  byId('moment-search').addEventListener('input', () => fillMoment());
  unitChanged.push(() => live.graph.again());
  showMoment(data.peak);
}

function showKeys() {
  const keys = byId('compose-keys');
  keys.textContent = '';
  live.made[live.way].names.forEach((n, k) => {
    const span = document.createElement('span');
    span.append(swatch(fillOf(live.way, n, k)),
                live.way === 'class' ? classNames[classes.indexOf(n)] || n : n);
    keys.append(span);
  });
}

/* ---- a moment ---- */

function showMoment(event) {
  live.at = Math.round(clamp(event, 0, data.events - 1));
  live.items = [];
  for (let i = 0; i < lives.count && lives.alloc[i] <= live.at; i++)
    if (lives.free[i] > live.at) live.items.push(i);
  live.graph.graph.updateOptions({});
  fillMoment();
}

/* Where a tensor comes from, outermost first: its stack, else what else is known of it. */
function pathOf(i) {
  const stack = stackOf(i);
  return stack.length ? [...stack].reverse().map((n) => data.frames[n])
                      : [phaseOf(i), classOf(i), `tensors of ${size(bytesOf(i))}`];
}

function fillMoment() {
  const wanted = byId('moment-search').value.trim().toLowerCase(), groups = new Map();
  const root = { name: 'all', bytes: 0, below: new Map() };
  let bytes = 0, number = 0;
  for (const i of live.items) {
    const key = `${lives.units[i]} ${lives.phase[i]} ${classOf(i)} ${lives.site ? lives.site[i] : 0}`;
    let group = groups.get(key);
    if (!group) {
      group = { i, number: 0, bytes: 0, path: pathOf(i) };
      group.text = [size(bytesOf(i)), classOf(i), phaseOf(i), ...group.path].join(' ').toLowerCase();
      groups.set(key, group);
    }
    if (wanted && !group.text.includes(wanted)) continue;
    group.number++;
    group.bytes += bytesOf(i);
    bytes += bytesOf(i);
    number++;
  }
  const rows = [...groups.values()].filter((g) => g.number).sort((a, b) => b.bytes - a.bytes);
  for (const g of rows) addPath(root, g);
  byId('moment-title').textContent = `${moment(live.at)}${live.at === data.peak ? ', the peak' : ''}, iteration ` +
    `${iterationAt(live.at)}, phase ${phaseName(runAt(live.at))}: ${size(bytes)} in ${count(number)} tensors` +
    (wanted ? ` that match` : ' live');
  drawFlame(root);
  fillRows(rows, bytes);
}

function addPath(root, group) {
  let node = root;
  node.bytes += group.bytes;
  for (const name of group.path) {
    if (!node.below.has(name)) node.below.set(name, { name, bytes: 0, below: new Map() });
    node = node.below.get(name);
    node.bytes += group.bytes;
  }
}

/* Boxes as wide as their bytes, callers above what they call. */
function drawFlame(root) {
  const box = byId('flame'), rowHeight = 20;
  let deep = 0, k = 0;
  box.textContent = '';
  const put = (node, from, depth) => {
    let at = from;
    for (const below of [...node.below.values()].sort((a, b) => b.bytes - a.bytes)) {
      const share = below.bytes / root.bytes;
      if (share > 0.002 && depth < 40) {
        const bar = document.createElement('button');
        bar.type = 'button';
        bar.style.cssText = `left:${at * 100}%;width:${share * 100}%;top:${depth * rowHeight}px;` +
          `background:var(--area${k++ % PALETTE})`;
        bar.title = `${below.name}: ${size(below.bytes)} (${(share * 100).toFixed(1)} %)`;
        bar.textContent = below.name;
        bar.addEventListener('click', () => { byId('moment-search').value = below.name; fillMoment(); });
        box.append(bar);
        deep = Math.max(deep, depth + 1);
        put(below, at, depth + 1);
      }
      at += share;
    }
  };
  if (root.bytes) put(root, 0, 0);
  box.style.height = `${Math.max(deep, 1) * rowHeight}px`;
}

function cell(row, kind, label, text) {
  const made = document.createElement(kind);
  if (kind === 'th') made.scope = 'row';
  made.dataset.label = label;
  made.textContent = text;
  row.append(made);
  return made;
}

function fillRows(rows, all) {
  const body = byId('moment-rows');
  body.textContent = '';
  for (const g of rows.slice(0, ROWS_MOST)) {
    const row = document.createElement('tr');
    cell(row, 'th', 'tensors of', size(bytesOf(g.i)));
    cell(row, 'td', 'number', count(g.number));
    cell(row, 'td', 'together', size(g.bytes));
    cell(row, 'td', 'share', `${(100 * g.bytes / all).toFixed(1)} %`);
    cell(row, 'td', 'class', classOf(g.i)).className = 'text';
    cell(row, 'td', 'phase', phaseOf(g.i)).className = 'text';
    const where = cell(row, 'td', 'allocated at', placeAndAnnotations(g.i));
    where.className = 'text';
    where.title = stackOf(g.i).map((n) => data.frames[n]).join('\n');
    body.append(row);
  }
  byId('moment-more').textContent = rows.length > ROWS_MOST
    ? `and ${count(rows.length - ROWS_MOST)} kinds more: search, or look at what is larger` : '';
}

/* ---- two allocators side by side ---- */

const sides = [];

function sideRows(which) {
  return (from, to, columns) => {
    const curve = held.find((c) => c.name === byId(`${which}-policy`).value) || held[0];
    const first = clamp(Math.floor(from * data.buckets / data.events), 0, data.buckets - 1);
    const last = clamp(Math.ceil(to * data.buckets / data.events), first + 1, data.buckets);
    const step = Math.max(1, Math.ceil((last - first) / columns)), out = [];
    for (let b = first; b < last; b += step) {
      let most = -1, living = 0;
      for (let k = b; k < Math.min(b + step, last); k++) {
        most = Math.max(most, curve.high[k]);
        living = Math.max(living, liveHigh[k]);
      }
      out.push([(b + 0.5) * data.events / data.buckets, living / SCALE, most < 0 ? null : most / SCALE]);
    }
    return out;
  };
}
const liveHigh = decode(data.high || '', Float32Array);

function makeSides() {
  if (held.length < 1) { byId('compare').remove(); return; }
  let most = 0;
  for (const c of held) for (const bytes of c.high) most = Math.max(most, bytes);
  for (const [k, which] of ['left', 'right'].entries()) {
    const choose = byId(`${which}-policy`);
    for (const c of held) choose.append(new Option(c.name, c.name));
    choose.value = (held.find((c) => c.name === ['native', 'pleat'][k]) || held[Math.min(k, held.length - 1)]).name;
    const side = plot(which, {
      least: 0, most: data.events, narrow: 64, rows: sideRows(which), labels: ['event', 'live', 'physical'],
      colours: () => [colour('persistent'), colour(choose.value)], shown: [true, true], tick: tickOf,
      read: (row) => {
        byId(`${which}-read`).textContent = `${moment(Math.round(row[0]))}: ${row[2] === null ? 'out of memory' :
          `holds ${row[2].toFixed(3)} ${SCALE_NAME}, live ${row[1].toFixed(3)}, idle ${(row[2] - row[1]).toFixed(3)}`}`;
      },
      more: { customBars: false, fillGraph: true, fillAlpha: 0.55, xlabel: '',
              valueRange: [0, most / SCALE * 1.04], underlayCallback: drawMarks },
      moved: (span) => sides.forEach((s) => { if (s.at()[0] !== span[0] || s.at()[1] !== span[1]) s.show(...span); }),
    });
    sides.push(side);
    const told = () => {
      const curve = held.find((c) => c.name === choose.value);
      const top = curve.high.reduce((a, b) => Math.max(a, b), 0);
      byId(`${which}-most`).textContent = `at most ${size(top)}, ` +
        `${size(Math.max(0, top - liveHigh.reduce((a, b) => Math.max(a, b), 0)))} beyond what is live`;
    };
    choose.addEventListener('change', () => {
      side.again();
      side.graph.updateOptions({ colors: [colour('persistent'), colour(choose.value)] });
      told();
    });
    told();
    unitChanged.push(() => side.again());
  }
}
