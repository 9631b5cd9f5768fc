/* Draws the report: curves by dygraphs, the address map and the chunks on canvases of their own
 * (tens of thousands of boxes, which no plotting library takes). All data stands in the page. */
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data-json').textContent);
  const byId = (id) => document.getElementById(id);
  const GIB = 2 ** 30, UNIT = 512, UNMAPPED = 0xffffffff;

  function decode(text, Type) {
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

  /* ---- memory over time ---- */

  const phaseRuns = decode(data.phases || '', Uint32Array);
  const marks = decode(data.marks || '', Uint32Array);
  const curves = data.job ? [{ name: 'live', low: data.low, high: data.high }] : [];
  for (const p of data.policies || []) {
    curves.push({ name: p.name, low: p.low, high: p.high });
    if (p.vhigh) curves.push({ name: 'virtual', label: 'pleat, virtual', low: p.vlow, high: p.vhigh,
                               hidden: true });
  }
  for (const c of curves) {
    c.label = c.label || (c.name === 'live' ? 'live' : `${c.name}, physical`);
    c.low = decode(c.low, Float32Array);
    c.high = decode(c.high, Float32Array);
    c.shown = !c.hidden;
  }

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

  /* At most `columns` rows over [from, to] events: [x, [low, high, high], ...]. A bucket that was
   * never reached (a job that ran out of memory) has no value. */
  function rows(from, to, columns) {
    const first = clamp(Math.floor(from * data.buckets / data.events) - 1, 0, data.buckets - 1);
    const last = clamp(Math.ceil(to * data.buckets / data.events) + 1, first + 1, data.buckets);
    const step = Math.max(1, Math.ceil((last - first) / columns)), out = [];
    for (let b = first; b < last; b += step) {
      const row = [(b + step / 2) * data.events / data.buckets];
      for (const c of curves) {
        let low = Infinity, high = -1;
        for (let k = b; k < Math.min(b + step, last); k++) {
          if (c.low[k] < 0) continue;
          if (c.low[k] < low) low = c.low[k];
          if (c.high[k] > high) high = c.high[k];
        }
        row.push(high < 0 ? [null, null, null] : [low / GIB, high / GIB, high / GIB]);
      }
      out.push(row);
    }
    return out;
  }

  let view = [0, data.events];

  /* A zoomable plot of curves in box `id`. `of` has: most (x goes from of.least to it), narrow (the
   * least span shown), rows(from, to, columns), labels, colours(), shown, read(row), and what else
   * dygraphs is told. Returns what shows a span, redraws, and the graph. */
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
    graph = new Dygraph(box, current, Object.assign({
      labels: of.labels, customBars: true, fillAlpha: 0.25, strokeWidth: 1.5,
      connectSeparatedPoints: false, includeZero: true, digitsAfterDecimal: 3,
      ylabel: 'GiB', dateWindow: at, legend: 'never', xRangePad: 0, animatedZooms: false,
      visibility: of.shown,
      axes: { x: { axisLabelFormatter: of.tick, pixelsPerLabel: 95 },
              y: { axisLabelFormatter: (y) => `${+y.toFixed(3)}`, axisLabelWidth: 50 } },
      zoomCallback: (from, to) => show(from, to),
      highlightCallback: (event, x, points, index) => {
        if (current[index]) of.read(current[index]);
      },
    }, of.more, style()));
    graph.updateOptions({
      interactionModel: Object.assign({}, Dygraph.defaultInteractionModel, {
        dblclick: () => show(...whole),
      }),
    });
    box.addEventListener('keydown', (e) => {
      const span = at[1] - at[0], middle = (at[0] + at[1]) / 2;
      if (e.key === '+' || e.key === '=') show(middle - span / 4, middle + span / 4);
      else if (e.key === '-') show(middle - span, middle + span);
      else if (e.key === 'ArrowLeft') show(at[0] - span / 4, at[1] - span / 4);
      else if (e.key === 'ArrowRight') show(at[0] + span / 4, at[1] + span / 4);
      else if (e.key === '0') show(...whole);
      else return;
      e.preventDefault();
      of.read(current[current.length >> 1]);
    });
    window.addEventListener('resize', () => show(...at));
    onColours(() => graph.updateOptions(style()));
    return graph;
  }

  function drawMarks(context, area, g) {
    context.strokeStyle = colour('soft');
    context.setLineDash([4, 4]);
    for (const mark of marks) {
      const x = g.toDomXCoord(mark);
      if (x < area.x || x > area.x + area.w) continue;
      context.beginPath();
      context.moveTo(x, area.y);
      context.lineTo(x, area.y + area.h);
      context.stroke();
    }
    context.setLineDash([]);
  }

  /* The strip under the curves: one box a phase, by pixel columns, named where there is room. */
  function drawPhases(g) {
    const canvas = byId('phases'), context = prepare(canvas), area = g.getArea();
    const height = canvas.clientHeight, span = view[1] - view[0];
    const x = (event) => area.x + (event - view[0]) / span * area.w;
    const runs = phaseRuns.length / 2;
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    for (let r = runAt(view[0]); r < runs && phaseRuns[2 * r] < view[1]; r++) {
      const from = Math.max(x(phaseRuns[2 * r]), area.x);
      let end = r + 1 < runs ? phaseRuns[2 * r + 2] : data.events;
      const to = Math.min(x(end), area.x + area.w);
      if (to - from < 0.5) continue;
      context.fillStyle = phaseRuns[2 * r + 1] % 2 ? colour('panel') : colour('line');
      context.fillRect(from, 0, to - from, height);
      const name = phaseName(r);
      if (to - from > context.measureText(name).width + 6) {
        context.fillStyle = colour('text');
        context.fillText(name, from + 3, height / 2);
      }
    }
  }

  function readCurves(row) {
    const event = clamp(Math.round(row[0]), 0, data.events - 1), parts = [];
    curves.forEach((c, i) => {
      if (c.shown && row[i + 1][2] !== null)
        parts.push(`${c.label} ${row[i + 1][2].toFixed(3)} GiB`);
    });
    byId('curves-read').textContent = `event ${count(event)}, iteration ${iterationAt(event)}, ` +
      `phase ${phaseName(runAt(event))}: ${parts.join('; ')}`;
  }

  function makeCurves() {
    const graph = plot('curves', {
      least: 0, most: data.events, narrow: 64, rows,
      labels: ['event', ...curves.map((c) => c.label)],
      colours: () => curves.map((c) => colour(c.name)),
      shown: curves.map((c) => c.shown), tick: (x) => count(x), read: readCurves,
      moved: (at) => { view = at; },
      more: { xlabel: 'events (allocations and frees)', underlayCallback: drawMarks,
              drawCallback: drawPhases },
    });
    curves.forEach((c, i) => {
      const label = document.createElement('label'), tick = document.createElement('input');
      tick.type = 'checkbox';
      tick.checked = c.shown;
      tick.addEventListener('change', () => {
        c.shown = tick.checked;
        graph.setVisibility(i, c.shown);
      });
      label.append(tick, swatch(c.name), c.label);
      byId('curves-toggles').append(label);
    });
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
                ...most.map((m, i) => [(i ? m : low) / GIB, m / GIB, m / GIB])]);
    }
    return out;
  }

  /* What the plan expects, as lines across. */
  function drawPlanned(context, area, g) {
    for (const [bytes, dash] of [[data.run.planned, []], [data.run.plannedLive, [6, 4]]]) {
      if (!bytes) continue;
      const y = g.toDomYCoord(bytes / GIB);
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
          runCurves.map((c, i) => `${c[1]} ${row[i + 1][2].toFixed(3)} GiB`).join('; ') +
          (data.run.planned ? `; planned ${(data.run.planned / GIB).toFixed(3)} GiB` : '');
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

  const classes = ['transient', 'scoped', 'crossing', 'persistent', 'dynamic', 'small'];
  const classNames = ['transient (within a phase)', 'scoped (freed in a later phase)',
    'crossing (freed in the next iteration)', 'persistent', 'dynamic (a lane)', 'small (under 1 MiB)'];

  /* Boxes {t0, t1, y0, y1, cls, alias, home}, y in bytes; a life that wraps is two of them. */
  function windowBoxes(plan) {
    const flat = decode(plan.boxes, Uint32Array), boxes = [];
    for (let i = 0; i < flat.length; i += 5) {
      const [begin, end, place, length, cls] = flat.subarray(i, i + 5);
      const box = { y0: place * UNIT, y1: (place + length) * UNIT, cls, begin, end };
      if (end > begin) boxes.push({ ...box, t0: begin, t1: end });
      else {
        boxes.push({ ...box, t0: begin, t1: plan.events });
        if (end > 0) boxes.push({ ...box, t0: 0, t1: end });
      }
    }
    return boxes;
  }

  function makePages(plan) {
    const pages = decode(plan.pages, Uint32Array), home = new Map();
    const alias = new Uint8Array(pages.length);
    for (let p = 0; p < pages.length; p++) {
      if (pages[p] === UNMAPPED) continue;
      if (home.has(pages[p])) alias[p] = 1; else home.set(pages[p], p);
    }
    return { pages, alias, home };
  }

  /* Each window box as runs of chunks. */
  function chunkBoxes(plan, boxes, table) {
    const out = [], chunk = plan.chunk;
    for (const box of boxes) {
      let y = box.y0;
      while (y < box.y1) {
        const page = Math.floor(y / chunk), first = table.pages[page];
        let stop = Math.min((page + 1) * chunk, box.y1), next = page + 1;
        if (first === UNMAPPED) { y = stop; continue; }
        while (stop < box.y1 && table.pages[next] === first + next - page &&
               table.alias[next] === table.alias[page]) {
          stop = Math.min((next + 1) * chunk, box.y1);
          next++;
        }
        const at = first * chunk + (y - page * chunk);
        out.push({ ...box, y0: at, y1: at + (stop - y), alias: table.alias[page], of: box });
        y = stop;
      }
    }
    return out;
  }

  function hatchOf(context) {
    const tile = document.createElement('canvas');
    tile.width = tile.height = 6;
    const c = tile.getContext('2d');
    c.strokeStyle = colour('back');
    c.lineWidth = 1.6;
    c.beginPath();
    c.moveTo(-1, 7); c.lineTo(7, -1);
    c.moveTo(-1, 1); c.lineTo(1, -1);
    c.moveTo(5, 7); c.lineTo(7, 5);
    c.stroke();
    return context.createPattern(tile, 'repeat');
  }

  /* A zoomable picture of boxes: time across, bytes up. */
  function picture(name, boxes, extent, events, describe, marksOf, strip) {
    const canvas = byId(`${name}-canvas`), read = byId(`${name}-read`);
    const all = { t0: 0, t1: events, y0: 0, y1: extent };
    const kept = document.createElement('canvas'); /* the boxes as last drawn */
    let at = { ...all }, drag = null, pointed = null, wanted = false, stale = true;
    const left = 62, bottom = 34, top = 6, right = strip ? 46 : 8;
    const width = () => canvas.clientWidth - left - right;
    const height = () => canvas.clientHeight - top - bottom;
    const x = (t) => left + (t - at.t0) / (at.t1 - at.t0) * width();
    const y = (b) => top + (at.y1 - b) / (at.y1 - at.y0) * height();
    const timeAt = (px) => at.t0 + (px - left) / width() * (at.t1 - at.t0);
    const byteAt = (py) => at.y1 - (py - top) / height() * (at.y1 - at.y0);

    function move(t0, t1, y0, y1) {
      const spanT = clamp(t1 - t0, Math.min(16, events), events);
      const spanY = clamp(y1 - y0, Math.min(65536, extent), extent);
      t0 = clamp(t0, 0, events - spanT);
      y0 = clamp(y0, 0, extent - spanY);
      at = { t0, t1: t0 + spanT, y0, y1: y0 + spanY };
      redraw();
    }
    function zoom(factor, px, py) {
      const t = timeAt(px), b = byteAt(py);
      move(t - (t - at.t0) * factor, t + (at.t1 - t) * factor,
           b - (b - at.y0) * factor, b + (at.y1 - b) * factor);
    }
    function axes(c) {
      c.font = '12px system-ui, sans-serif';
      c.fillStyle = colour('text');
      c.strokeStyle = colour('line');
      c.textAlign = 'right';
      c.textBaseline = 'middle';
      const spanY = at.y1 - at.y0, unit = spanY >= 2 * GIB ? GIB : 2 ** 20;
      const stepY = niceStep(spanY / unit / 5);
      for (let v = Math.ceil(at.y0 / unit / stepY) * stepY; v * unit <= at.y1; v += stepY) {
        const py = y(v * unit);
        c.beginPath(); c.moveTo(left - 4, py); c.lineTo(left, py); c.stroke();
        if (py > top + 18) c.fillText(`${+v.toFixed(3)}`, left - 8, py);
      }
      c.fillText(unit === GIB ? 'GiB' : 'MiB', left - 8, top + 7);
      c.textAlign = 'center';
      c.textBaseline = 'top';
      const stepT = niceStep((at.t1 - at.t0) / Math.max(3, width() / 140));
      const base = canvas.clientHeight - bottom;
      for (let t = Math.ceil(at.t0 / stepT) * stepT; t <= at.t1; t += stepT) {
        const px = clamp(x(t), left + 10, canvas.clientWidth - right - 22);
        c.fillText(count(t), px, base + 3);
      }
      c.fillStyle = colour('soft');
      c.fillText('events of the iteration', left + width() / 2, base + 18);
    }
    function drawBoxes(c) {
      const hatch = hatchOf(c), fills = classes.map(colour), aliased = [];
      c.fillStyle = colour('panel');
      c.fillRect(left, top, width(), height());
      c.save();
      c.beginPath();
      c.rect(left, top, width(), height());
      c.clip();
      for (const b of boxes) {
        if (b.t1 <= at.t0 || b.t0 >= at.t1 || b.y1 <= at.y0 || b.y0 >= at.y1) continue;
        const px = x(b.t0), py = y(b.y1);
        const w = Math.max(x(b.t1) - px, 0.2), h = Math.max(y(b.y0) - py, 0.1);
        c.fillStyle = fills[b.cls];
        c.fillRect(px, py, w, h);
        if (b.alias && w > 2 && h > 2) aliased.push([px, py, w, h]);
      }
      c.fillStyle = hatch;
      for (const a of aliased) c.fillRect(...a);
      c.restore();
      axes(c);
      if (strip) strip(c, { x: canvas.clientWidth - right + 6, width: right - 14, top, y, at,
                            height: height() });
      kept.width = canvas.width;
      kept.height = canvas.height;
      kept.getContext('2d').drawImage(canvas, 0, 0);
    }
    function drawOver(c) {
      c.save();
      c.beginPath();
      c.rect(left, top, width(), height());
      c.clip();
      c.strokeStyle = colour('text');
      c.lineWidth = 2;
      for (const b of pointed ? [pointed, ...marksOf(pointed)] : [])
        c.strokeRect(x(b.t0), y(b.y1), x(b.t1) - x(b.t0), Math.max(y(b.y0) - y(b.y1), 1));
      if (drag && drag.moved) {
        c.lineWidth = 1;
        c.setLineDash([4, 3]);
        c.strokeRect(drag.x, drag.y, drag.toX - drag.x, drag.toY - drag.y);
      }
      c.restore();
    }
    /* Pointing and dragging change only what lies over the boxes, of which there may be 100,000. */
    function draw() {
      const fresh = stale;
      wanted = stale = false;
      if (canvas.clientWidth === 0) return;
      const c = prepare(canvas);
      if (fresh) drawBoxes(c);
      else c.drawImage(kept, 0, 0, canvas.clientWidth, canvas.clientHeight);
      drawOver(c);
    }
    function request() {
      if (wanted) return;
      wanted = true;
      requestAnimationFrame(draw);
    }
    function redraw() {
      stale = true;
      request();
    }
    function find(px, py) {
      const t = timeAt(px), b = byteAt(py);
      for (let i = boxes.length - 1; i >= 0; i--) {
        const box = boxes[i];
        if (t >= box.t0 && t < box.t1 && b >= box.y0 && b < box.y1) return box;
      }
      return null;
    }
    function point(px, py) {
      const found = px >= left && py >= top && px < left + width() && py < top + height()
        ? find(px, py) : null;
      read.textContent = found ? describe(found)
        : `event ${count(clamp(timeAt(px), 0, events))}, ${size(clamp(byteAt(py), 0, extent))}: idle`;
      if (found === pointed) return;
      pointed = found;
      request();
    }
    canvas.addEventListener('pointerdown', (e) => {
      if (e.pointerType === 'touch') { point(e.offsetX, e.offsetY); return; }
      drag = { x: e.offsetX, y: e.offsetY, toX: e.offsetX, toY: e.offsetY, moved: false };
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener('pointermove', (e) => {
      if (!drag) { point(e.offsetX, e.offsetY); return; }
      drag.toX = e.offsetX;
      drag.toY = e.offsetY;
      drag.moved = drag.moved || Math.hypot(drag.toX - drag.x, drag.toY - drag.y) > 5;
      request();
    });
    canvas.addEventListener('pointerup', () => {
      const d = drag;
      drag = null;
      request();
      if (d && d.moved)
        move(timeAt(Math.min(d.x, d.toX)), timeAt(Math.max(d.x, d.toX)),
             byteAt(Math.max(d.y, d.toY)), byteAt(Math.min(d.y, d.toY)));
    });
    canvas.addEventListener('pointerleave', () => { if (!drag) { pointed = null; request(); } });
    canvas.addEventListener('dblclick', () => { at = { ...all }; redraw(); });
    canvas.addEventListener('wheel', (e) => {
      if (document.activeElement !== canvas && !e.ctrlKey) return; /* the page scrolls */
      e.preventDefault();
      zoom(e.deltaY > 0 ? 1.25 : 0.8, e.offsetX, e.offsetY);
    }, { passive: false });
    canvas.addEventListener('click', () => canvas.focus({ preventScroll: true }));
    canvas.addEventListener('keydown', (e) => {
      const t = (at.t1 - at.t0) / 4, b = (at.y1 - at.y0) / 4;
      const px = left + width() / 2, py = top + height() / 2;
      if (e.key === '+' || e.key === '=') zoom(0.5, px, py);
      else if (e.key === '-') zoom(2, px, py);
      else if (e.key === 'ArrowLeft') move(at.t0 - t, at.t1 - t, at.y0, at.y1);
      else if (e.key === 'ArrowRight') move(at.t0 + t, at.t1 + t, at.y0, at.y1);
      else if (e.key === 'ArrowUp') move(at.t0, at.t1, at.y0 + b, at.y1 + b);
      else if (e.key === 'ArrowDown') move(at.t0, at.t1, at.y0 - b, at.y1 - b);
      else if (e.key === '0') at = { ...all };
      else return;
      e.preventDefault();
      point(px, py);
      redraw();
    });
    new ResizeObserver(redraw).observe(canvas);
    draw();
    return redraw;
  }

  function niceStep(rough) {
    const power = 10 ** Math.floor(Math.log10(rough));
    for (const k of [1, 2, 5]) if (k * power >= rough) return k * power;
    return 10 * power;
  }

  /* ---- the plan's pictures ---- */

  function key(name, boxes) {
    const used = new Set(boxes.map((b) => b.cls));
    classes.forEach((cls, i) => {
      if (!used.has(i)) return;
      const span = document.createElement('span');
      span.append(swatch(cls), classNames[i]);
      byId(`${name}-key`).append(span);
    });
  }

  const life = (b) => b.cls === 3 ? 'always' : `events ${count(b.begin)} to ${count(b.end)}` +
    (b.end <= b.begin ? ' of the next iteration' : '');

  function makePlan(plan) {
    const table = makePages(plan), window_ = windowBoxes(plan), chunk = plan.chunk;
    for (const b of window_) {
      const last = Math.ceil(b.y1 / chunk);
      for (let p = Math.floor(b.y0 / chunk); p < last && !b.alias; p++) b.alias = table.alias[p];
    }
    const homes = (b) => {
      const out = [];
      if (!b.alias) return out;
      for (let p = Math.floor(b.y0 / chunk); p < Math.ceil(b.y1 / chunk); p++) {
        const home = table.home.get(table.pages[p]);
        if (home === undefined || home === p) continue;
        const last = out[out.length - 1];
        if (last && last.y1 === home * chunk) last.y1 += chunk;
        else out.push({ t0: b.t0, t1: b.t1, y0: home * chunk, y1: (home + 1) * chunk });
      }
      return out;
    };
    const redrawMap = picture('map', window_, plan.virtual, plan.events, (b) =>
      `${classes[b.cls]}, ${size(b.y1 - b.y0)} at ${size(b.y0)} of the window, ${life(b)}` +
      (b.alias ? `; on chunks shared with ${homes(b).length} other places (outlined)` : ''), homes);
    const parts = chunkBoxes(plan, window_, table), chunks = Math.ceil(plan.physical / chunk);
    const busy = idleShares(parts, chunks, chunk, plan.events);
    const strip = (c, s) => {
      const perPixel = (s.at.y1 - s.at.y0) / chunk / s.height;
      for (let row = 0; row < s.height; row++) {
        const from = s.at.y1 / chunk - (row + 1) * perPixel;
        const first = clamp(Math.floor(from), 0, chunks - 1);
        const last = clamp(Math.ceil(from + perPixel), first + 1, chunks);
        let sum = 0;
        for (let k = first; k < last; k++) sum += 1 - busy[k];
        c.fillStyle = colour('soft');
        c.fillRect(s.x, s.top + row, s.width * sum / (last - first), 1);
      }
      c.strokeStyle = colour('line');
      c.strokeRect(s.x, s.top, s.width, s.height);
      c.fillStyle = colour('soft');
      c.textAlign = 'center';
      c.textBaseline = 'top';
      c.fillText('idle %', s.x + s.width / 2 - 2, s.top + s.height + 18);
    };
    const redrawChunks = picture('chunks', parts, chunks * chunk, plan.events, (b) =>
      `chunk ${count(Math.floor(b.y0 / chunk))}` +
      (b.y1 - b.y0 > chunk ? ` to ${count(Math.ceil(b.y1 / chunk) - 1)}` : '') +
      `: ${classes[b.cls]} tensor of ${size(b.of.y1 - b.of.y0)}, ${life(b)}` +
      (b.alias ? ', through an alias view' : '') +
      `; the chunk is idle ${(100 * (1 - busy[Math.floor(b.y0 / chunk)])).toFixed(1)} % of the time`,
    () => [], strip);
    key('map', window_);
    key('chunks', parts);
    return () => { redrawMap(); redrawChunks(); };
  }

  /* Share of the iteration in which each chunk holds anything. */
  function idleShares(parts, chunks, chunk, events) {
    const lives = Array.from({ length: chunks }, () => []);
    for (const b of parts)
      for (let k = Math.floor(b.y0 / chunk); k < Math.min(Math.ceil(b.y1 / chunk), chunks); k++)
        lives[k].push(b);
    return lives.map((list) => {
      let sum = 0, until = 0;
      list.sort((a, b) => a.t0 - b.t0);
      for (const b of list) {
        sum += Math.max(0, b.t1 - Math.max(b.t0, until));
        until = Math.max(until, b.t1);
      }
      return sum / events;
    });
  }

  if (data.run) makeRun();
  if (data.job) {
    makeCurves();
    let redrawPlan = () => {};
    if (data.plan) {
      redrawPlan = makePlan(data.plan);
    } else {
      for (const id of ['map', 'chunks'])
        byId(id).innerHTML += '<p>Nothing repeats in this recording, so there is no plan to draw.</p>';
      for (const id of ['map-canvas', 'chunks-canvas']) byId(id).remove();
    }
    onColours(() => redrawPlan());
  }
})();
