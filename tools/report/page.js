/* Draws the report, with live.js and map.js behind it in one script: here is what they share, and the
 * run's curves. Curves are dygraphs'; the map is on a canvas of its own (tens of thousands of boxes,
 * which no plotting library takes). All data stands in the page. */
'use strict';
const data = JSON.parse(document.getElementById('data-json').textContent);
const byId = (id) => document.getElementById(id);
const GIB = 2 ** 30, UNIT = 512, UNMAPPED = 0xffffffff;
/* The unit of curves: allocators hold a MiB at least. */
const [SCALE, SCALE_NAME] = data.most >= GIB ? [GIB, 'GiB'] : [2 ** 20, 'MiB'];

function decode(text, Type) {
  if (Uint8Array.fromBase64) return new Type(Uint8Array.fromBase64(text).buffer);
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Type(bytes.buffer);
}
function size(bytes) {
  const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let k = 0;
  while (bytes >= 1024 && k < 4) { bytes /= 1024; k++; }
  return `${k ? bytes.toFixed(k > 2 ? 3 : 2) : bytes} ${names[k]}`;
}
const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/* Light, dark and paper have colours of their own. */
const onColours = (draw) => ['(prefers-color-scheme: dark)', 'print'].forEach(
  (query) => window.matchMedia(query).addEventListener('change', draw));
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const count = (n) => Math.round(n).toLocaleString('en');

/* ---- events, phases, iterations ---- */

const phaseRuns = decode(data.phases || '', Uint32Array);
const marks = decode(data.marks || '', Uint32Array);

/* The last phase run that begins at or before an event. */
function runAt(event) {
  let low = 0, high = phaseRuns.length / 2;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (phaseRuns[2 * middle] <= event) low = middle; else high = middle;
  }
  return low;
}
const phaseName = (run) => data.names[phaseRuns[2 * run + 1]] || '(no phase)';
function iterationAt(event) {
  let i = 0;
  while (i < marks.length && marks[i] <= event) i++;
  return i;
}

/* Seconds at an event, from a few thousand that the recording says. */
const times = decode(data.times || '', Float32Array);
function secondsAt(event) {
  const at = clamp(event / data.events * times.length, 0, times.length - 1);
  const low = Math.floor(at), high = Math.min(low + 1, times.length - 1);
  return times[low] + (times[high] - times[low]) * (at - low);
}
let inSeconds = false;
const unitChanged = [];
const moment = (event) => (inSeconds ? `${+secondsAt(event).toFixed(4)} s` : `event ${count(event)}`);
const tickOf = (event) => (inSeconds ? `${+secondsAt(event).toPrecision(4)}` : count(event));

/* Two fingers on a plot: tells by what factor the span shrinks, and where between its ends. */
function pinch(box, zoom) {
  let apart = 0;
  const spread = (e) => Math.abs(e.touches[0].clientX - e.touches[1].clientX) + 1;
  box.addEventListener('touchstart', (e) => {
    if (e.touches.length === 2) { apart = spread(e); e.preventDefault(); }
  }, { passive: false });
  box.addEventListener('touchmove', (e) => {
    if (e.touches.length !== 2 || !apart) return;
    e.preventDefault();
    const frame = box.getBoundingClientRect(), now = spread(e);
    const middle = (e.touches[0].clientX + e.touches[1].clientX) / 2;
    zoom(apart / now, clamp((middle - frame.left) / frame.width, 0, 1));
    apart = now;
  }, { passive: false });
}

/* A zoomable plot of curves in box `id`. `of` has: most (x goes from of.least to it), narrow (the
 * least span shown), rows(from, to, columns), labels, colours(), shown, read(row), chosen(x) where a click
 * means something, and what else dygraphs is told. Returns what shows a span, and the graph. */
function plot(id, of) {
  const box = byId(id), whole = [of.least, of.most];
  const columns = () => clamp(Math.floor(box.clientWidth / 2), 120, 640);
  let at = whole, graph = null, current = of.rows(...whole, columns());
  const style = () => ({ colors: of.colours(), gridLineColor: colour('line'),
                         axisLineColor: colour('soft') });
  function show(from, to) {
    const room = of.most - of.least, span = clamp(to - from, Math.min(of.narrow, room), room);
    from = clamp(from, of.least, of.most - span);
    at = [from, from + span];
    if (of.moved) of.moved(at);
    current = of.rows(...at, columns());
    graph.updateOptions({ file: current, dateWindow: at });
  }
  if (of.moved) of.moved(at);
  /* One finger scrolls the page, two zoom the plot (pinch). */
  const { touchstart, touchmove, touchend, ...mouse } = Dygraph.defaultInteractionModel;
  graph = new Dygraph(box, current, Object.assign({
    labels: of.labels, customBars: true, fillAlpha: 0.25, strokeWidth: 1.5,
    connectSeparatedPoints: false, includeZero: true, digitsAfterDecimal: 3,
    ylabel: SCALE_NAME, dateWindow: at, legend: 'never', xRangePad: 0, animatedZooms: false,
    visibility: of.shown, interactionModel: { ...mouse, dblclick: () => show(...whole) },
    axes: { x: { axisLabelFormatter: of.tick, pixelsPerLabel: 95 },
            y: { axisLabelFormatter: (y) => `${+y.toFixed(3)}`, axisLabelWidth: 50 } },
    zoomCallback: (from, to) => show(from, to),
    clickCallback: (event, x) => { if (of.chosen) of.chosen(x); },
    highlightCallback: (event, x, points, index) => {
      if (current[index]) of.read(current[index]);
    },
  }, of.more, style()));
  pinch(box, (factor, share) => {
    const span = at[1] - at[0], middle = at[0] + span * share;
    show(middle - span * factor * share, middle + span * factor * (1 - share));
  });
  box.addEventListener('keydown', (e) => {
    const span = at[1] - at[0], middle = (at[0] + at[1]) / 2;
    if (e.key === '+' || e.key === '=') show(middle - span / 4, middle + span / 4);
    else if (e.key === '-') show(middle - span, middle + span);
    else if (e.key === 'ArrowLeft') show(at[0] - span / 4, at[1] - span / 4);
    else if (e.key === 'ArrowRight') show(at[0] + span / 4, at[1] + span / 4);
    else if (e.key === '0') show(...whole);
    else if (e.key === 'Enter' && of.chosen) of.chosen(current[current.length >> 1][0]);
    else return;
    e.preventDefault();
    of.read(current[current.length >> 1]);
  });
  window.addEventListener('resize', () => show(...at));
  onColours(() => graph.updateOptions(style()));
  return { graph, show, at: () => at, again: () => show(...at) };
}

function swatch(name) {
  const box = document.createElement('i');
  box.style.background = `var(--${name})`;
  return box;
}

/* ---- a run, from its log ---- */

const RUN = { from: 0, to: 1, low: 2, live: 3, physical: 4, virtual: 5, limit: 6 };
const runCurves = [['live', 'live', RUN.live], ['pleat', 'physical', RUN.physical],
                   ['virtual', 'virtual', RUN.virtual]];

/* Records as rows of at most `columns`: the most of each, of live the least too. */
function runRows(flat, width, from, to, columns) {
  const records = flat.length / width, out = [];
  let first = 0, last = records;
  while (first + 1 < records && flat[(first + 1) * width + RUN.to] <= from) first++;
  while (last > first + 1 && flat[(last - 2) * width + RUN.to] >= to) last--;
  const step = Math.max(1, Math.ceil((last - first) / columns));
  for (let r = first; r < last; r += step) {
    const end = Math.min(r + step, last), most = [0, 0, 0];
    let low = Infinity;
    for (let k = r; k < end; k++) {
      low = Math.min(low, flat[k * width + RUN.low]);
      runCurves.forEach((c, i) => { most[i] = Math.max(most[i], flat[k * width + c[2]]); });
    }
    out.push([flat[(end - 1) * width + RUN.to],
              ...most.map((m, i) => [(i ? m : low) / SCALE, m / SCALE, m / SCALE])]);
  }
  return out;
}

/* What the plan expects, as lines across. */
function drawPlanned(context, area, g) {
  for (const [bytes, dash] of [[data.run.planned, []], [data.run.plannedLive, [6, 4]]]) {
    if (!bytes) continue;
    const y = g.toDomYCoord(bytes / SCALE);
    if (y < area.y || y > area.y + area.h) continue;
    context.strokeStyle = colour('planned');
    context.lineWidth = 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(area.x, y);
    context.lineTo(area.x + area.w, y);
    context.stroke();
  }
  context.setLineDash([]);
  context.lineWidth = 1;
}

function makeRunPlot(id, text, what, unit, narrow) {
  const flat = decode(text, Float64Array), width = data.run.width, records = flat.length / width;
  if (records < 2) {
    byId(id).replaceWith(Object.assign(document.createElement('p'),
      { textContent: `The log has ${records ? 'one record' : 'no records'} of these: nothing to draw.` }));
    return;
  }
  plot(id, {
    least: unit ? flat[RUN.from] : flat[RUN.to], most: flat[flat.length - width + RUN.to], narrow,
    rows: (from, to, columns) => runRows(flat, width, from, to, columns),
    labels: [what, ...runCurves.map((c) => c[1])],
    colours: () => runCurves.map((c) => colour(c[0])),
    shown: runCurves.map(() => true), tick: (x) => (unit ? `${+x.toFixed(3)}` : count(x)),
    read: (row) => {
      byId(`${id}-read`).textContent = `${what} ${unit ? row[0].toFixed(3) + ' s' : count(row[0])}: ` +
        runCurves.map((c, i) => `${c[1]} ${row[i + 1][2].toFixed(3)} ${SCALE_NAME}`).join('; ') +
        (data.run.planned ? `; planned ${(data.run.planned / SCALE).toFixed(3)} ${SCALE_NAME}` : '');
    },
    more: { xlabel: unit ? 'seconds' : 'iterations', underlayCallback: drawPlanned },
  });
}

function makeRun() {
  for (const c of runCurves) {
    const span = document.createElement('span');
    span.append(swatch(c[0]), c[1]);
    byId('run-keys').append(span);
  }
  if (data.run.planned) {
    const span = document.createElement('span');
    span.append(swatch('planned'), 'planned: physical (whole line), live (dashed)');
    byId('run-keys').append(span);
  }
  makeRunPlot('run-time', data.run.intervals, 'time', 's', 0.05);
  makeRunPlot('run-steps', data.run.iterations, 'iteration', '', 4);
}

/* ---- canvases ---- */

/* Sized to the screen's pixels; cleared; in CSS pixels. */
function prepare(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  return context;
}

