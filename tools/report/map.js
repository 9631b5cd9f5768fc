/* The plan: what lies where, by address or by chunk, on one canvas; and the page's beginning. */

/* Boxes {t0, t1, y0, y1, cls, request, alias}, y in bytes; a life that wraps is two of them. */
function windowBoxes(plan) {
  const flat = decode(plan.boxes, Uint32Array), boxes = [];
  for (let i = 0; i < flat.length; i += 6) {
    const [begin, end, place, length, kind, request] = flat.subarray(i, i + 6);
    const box = { y0: place * UNIT, y1: (place + length) * UNIT, cls: kind, begin, end, request };
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

/* Only pages that something lies on are drawn, one above the other. */
function cropped(boxes, chunk, pages) {
  const used = new Uint8Array(pages), row = new Uint32Array(pages + 1);
  for (const b of boxes) used.fill(1, Math.floor(b.y0 / chunk), Math.ceil(b.y1 / chunk));
  for (let p = 0; p < pages; p++) row[p + 1] = row[p] + used[p];
  const at = (y) => {
    const page = Math.min(Math.floor(y / chunk), pages);
    return row[page] * chunk + (page < pages && used[page] ? y - page * chunk : 0);
  };
  return { boxes: boxes.map((b) => ({ ...b, at: b.y0, y0: at(b.y0), y1: at(b.y0) + (b.y1 - b.y0), of: b.of || b })),
           extent: row[pages] * chunk, at };
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

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const k of [1, 2, 5]) if (k * power >= rough) return k * power;
  return 10 * power;
}

/* A zoomable picture of a scene {boxes, extent, describe(box), marksOf(box), chosen(box), strip}: time
 * across, bytes up. Returns what draws another scene. */
function picture(plan, first) {
  const canvas = byId('map-canvas'), read = byId('map-read'), events = plan.events;
  const kept = document.createElement('canvas'); /* the boxes as last drawn */
  let scene = first, at = null, drag = null, pointed = null, wanted = false, stale = true;
  const left = 62, bottom = 34, above = 6;
  const all = () => ({ t0: 0, t1: events, y0: 0, y1: scene.extent });
  const right = () => (scene.strip ? 46 : 8);
  const width = () => canvas.clientWidth - left - right();
  const height = () => canvas.clientHeight - above - bottom;
  const x = (t) => left + (t - at.t0) / (at.t1 - at.t0) * width();
  const y = (b) => above + (at.y1 - b) / (at.y1 - at.y0) * height();
  const timeAt = (px) => at.t0 + (px - left) / width() * (at.t1 - at.t0);
  const byteAt = (py) => at.y1 - (py - above) / height() * (at.y1 - at.y0);
  at = all();

  function move(t0, t1, y0, y1) {
    const spanT = clamp(t1 - t0, Math.min(16, events), events);
    const spanY = clamp(y1 - y0, Math.min(65536, scene.extent), scene.extent);
    t0 = clamp(t0, 0, events - spanT);
    y0 = clamp(y0, 0, scene.extent - spanY);
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
      if (py > above + 18) c.fillText(`${+v.toFixed(3)}`, left - 8, py);
    }
    c.fillText(unit === GIB ? 'GiB' : 'MiB', left - 8, above + 7);
    c.textAlign = 'center';
    c.textBaseline = 'top';
    const stepT = niceStep((at.t1 - at.t0) / Math.max(3, width() / 140));
    const base = canvas.clientHeight - bottom;
    for (let t = Math.ceil(at.t0 / stepT) * stepT; t <= at.t1; t += stepT) {
      const px = clamp(x(t), left + 10, canvas.clientWidth - right() - 22);
      c.fillText(inSeconds ? tickOf(plan.begin + t) : count(t), px, base + 3);
    }
    c.fillStyle = colour('soft');
    c.fillText(inSeconds ? 'seconds of the recording' : 'events of the plan', left + width() / 2, base + 18);
  }
  function drawBoxes(c) {
    const hatch = hatchOf(c), fills = classes.map(colour), aliased = [], edges = [];
    c.fillStyle = colour('panel');
    c.fillRect(left, above, width(), height());
    c.save();
    c.beginPath();
    c.rect(left, above, width(), height());
    c.clip();
    for (const b of scene.boxes) {
      if (b.t1 <= at.t0 || b.t0 >= at.t1 || b.y1 <= at.y0 || b.y0 >= at.y1) continue;
      const px = x(b.t0), py = y(b.y1);
      const w = Math.max(x(b.t1) - px, 0.2), h = Math.max(y(b.y0) - py, 0.1);
      c.fillStyle = fills[b.cls];
      c.fillRect(px, py, w, h);
      if (b.alias && w > 2 && h > 2) aliased.push([px, py, w, h]);
      if (h > 3 && w > 3) edges.push([px, py, w, h]);
    }
    c.fillStyle = hatch;
    for (const a of aliased) c.fillRect(...a);
    c.strokeStyle = colour('back');
    c.lineWidth = 0.6;
    for (const e of edges) c.strokeRect(...e);
    c.restore();
    axes(c);
    if (scene.strip) scene.strip(c, { x: canvas.clientWidth - right() + 6, width: right() - 14, top: above, y, at,
                                      height: height() });
    kept.width = canvas.width;
    kept.height = canvas.height;
    kept.getContext('2d').drawImage(canvas, 0, 0);
    phaseStrip(byId('map-phases'), (put) => plan.phases.forEach(([begin, text], k) =>
      put(begin, k + 1 < plan.phases.length ? plan.phases[k + 1][0] : events, text || '(no phase)', k)),
    at.t0, at.t1, { x: left, w: width() }, []);
  }
  function drawOver(c) {
    c.save();
    c.beginPath();
    c.rect(left, above, width(), height());
    c.clip();
    c.strokeStyle = colour('text');
    c.lineWidth = 2;
    for (const b of pointed ? [pointed, ...scene.marksOf(pointed)] : [])
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
    if (px < left || py < above || px >= left + width() || py >= above + height()) return null;
    const t = timeAt(px), b = byteAt(py), boxes = scene.boxes;
    for (let i = boxes.length - 1; i >= 0; i--) {
      const box = boxes[i];
      if (t >= box.t0 && t < box.t1 && b >= box.y0 && b < box.y1) return box;
    }
    return null;
  }
  function point(px, py) {
    const found = find(px, py);
    read.textContent = found ? scene.describe(found)
      : `${inSeconds ? moment(plan.begin + timeAt(px)) : `event ${count(clamp(timeAt(px), 0, events))}`}, ` +
        `${size(clamp(byteAt(py), 0, scene.extent))}: idle`;
    if (found === pointed) return;
    pointed = found;
    request();
  }
  const choose = (px, py) => { point(px, py); if (pointed) scene.chosen(pointed); };
  canvas.addEventListener('pointerdown', (e) => {
    if (e.pointerType === 'touch') return; /* a finger scrolls, a tap points (click) */
    drag = { x: e.offsetX, y: e.offsetY, toX: e.offsetX, toY: e.offsetY, moved: false };
    if (e.isTrusted) canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener('pointermove', (e) => {
    if (e.pointerType === 'touch') return;
    if (!drag) { point(e.offsetX, e.offsetY); return; }
    drag.toX = e.offsetX;
    drag.toY = e.offsetY;
    drag.moved = drag.moved || Math.hypot(drag.toX - drag.x, drag.toY - drag.y) > 5;
    request();
  });
  let dragged = false;
  canvas.addEventListener('pointerup', () => {
    const d = drag;
    drag = null;
    request();
    dragged = Boolean(d && d.moved);
    if (dragged)
      move(timeAt(Math.min(d.x, d.toX)), timeAt(Math.max(d.x, d.toX)),
           byteAt(Math.max(d.y, d.toY)), byteAt(Math.min(d.y, d.toY)));
  });
  canvas.addEventListener('pointerleave', () => { if (!drag) { pointed = null; request(); } });
  canvas.addEventListener('dblclick', () => { at = all(); redraw(); });
  canvas.addEventListener('wheel', (e) => {
    if (document.activeElement !== canvas && !e.ctrlKey) return; /* the page scrolls */
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8, e.offsetX, e.offsetY);
  }, { passive: false });
  canvas.addEventListener('click', (e) => {
    canvas.focus({ preventScroll: true });
    if (!dragged) choose(e.offsetX, e.offsetY);
  });
  pinch(canvas, (factor, share) => zoom(factor, left + width() * share, above + height() / 2));
  canvas.addEventListener('keydown', (e) => {
    const t = (at.t1 - at.t0) / 4, b = (at.y1 - at.y0) / 4;
    const px = left + width() / 2, py = above + height() / 2;
    if (e.key === '+' || e.key === '=') zoom(0.5, px, py);
    else if (e.key === '-') zoom(2, px, py);
    else if (e.key === 'ArrowLeft') move(at.t0 - t, at.t1 - t, at.y0, at.y1);
    else if (e.key === 'ArrowRight') move(at.t0 + t, at.t1 + t, at.y0, at.y1);
    else if (e.key === 'ArrowUp') move(at.t0, at.t1, at.y0 + b, at.y1 + b);
    else if (e.key === 'ArrowDown') move(at.t0, at.t1, at.y0 - b, at.y1 - b);
    else if (e.key === '0') at = all();
    else if (e.key === 'Enter') choose(px, py);
    else return;
    e.preventDefault();
    point(px, py);
    redraw();
  });
  new ResizeObserver(redraw).observe(canvas);
  draw();
  return { redraw, show: (other) => { scene = other; at = all(); pointed = null; redraw(); } };
}

/* ---- the plan's two scenes ---- */

function spanOf(plan, b) {
  if (b.cls === 3) return 'always there';
  const from = plan.begin + b.begin, to = plan.begin + b.end;
  return inSeconds && b.end > b.begin ? `${(secondsAt(from)).toFixed(4)} to ${secondsAt(to).toFixed(4)} s`
    : `events ${count(b.begin)} to ${count(b.end)}${b.end <= b.begin ? ' of the next iteration' : ''}`;
}

/* "264.00 MiB, scoped, phase F, events 10 to 90, at forward (model.py:12)" */
function tensorText(plan, b) {
  const known = b.request !== NEVER && b.request < lives.count;
  return [size(b.of ? b.of.y1 - b.of.y0 : b.y1 - b.y0), classes[b.cls],
          ...(known ? [`allocated in phase ${phaseOf(b.request)}`] : []), spanOf(plan, b),
          ...(known && lives.site ? [`at ${placeAndAnnotations(b.request)}`] : [])].join(', ');
}

/* Everything that is ever on a chunk. */
function tenantsOf(parts, chunks, chunk) {
  const out = Array.from({ length: chunks }, () => []);
  for (const b of parts)
    for (let k = Math.floor(b.y0 / chunk); k < Math.min(Math.ceil(b.y1 / chunk), chunks); k++)
      out[k].push(b);
  return out;
}

function busyShare(list, events) {
  let sum = 0, until = 0;
  for (const b of [...list].sort((a, b) => a.t0 - b.t0)) {
    sum += Math.max(0, b.t1 - Math.max(b.t0, until));
    until = Math.max(until, b.t1);
  }
  return sum / events;
}

/* What else uses the chunks of a tensor, most bytes first, as a table under the map. */
function showTenants(plan, box, others) {
  const body = byId('tenant-rows');
  body.textContent = '';
  byId('tenant-title').textContent = `${tensorText(plan, box)}. ` + (others.length
    ? `Its chunks serve ${count(others.length)} other tensors at other times:` : 'Nothing else uses its chunks.');
  for (const b of others.slice(0, ROWS_MOST)) {
    const row = document.createElement('tr');
    cell(row, 'th', 'tensor', size(b.of.y1 - b.of.y0));
    cell(row, 'td', 'class', classes[b.cls]).className = 'text';
    cell(row, 'td', 'phase', b.request !== NEVER ? phaseOf(b.request) : '').className = 'text';
    cell(row, 'td', 'life', spanOf(plan, b)).className = 'text';
    cell(row, 'td', 'allocated at', b.request !== NEVER && lives.site ? placeAndAnnotations(b.request) : '(not recorded)').className = 'text';
    body.append(row);
  }
  byId('tenant-table').hidden = others.length === 0;
}

function makePlan(plan) {
  const table = makePages(plan), chunk = plan.chunk, byAddress = windowBoxes(plan);
  for (const b of byAddress) {
    const last = Math.ceil(b.y1 / chunk);
    for (let p = Math.floor(b.y0 / chunk); p < last && !b.alias; p++) b.alias = table.alias[p];
  }
  const parts = chunkBoxes(plan, byAddress, table), chunks = Math.ceil(plan.physical / chunk);
  const tenants = tenantsOf(parts, chunks, chunk), busy = tenants.map((list) => busyShare(list, plan.events));
  const others = (box) => {
    const own = box.of || box, seen = new Set(), found = new Map();
    for (let p = Math.floor(own.y0 / chunk); p < Math.ceil(own.y1 / chunk); p++) {
      const k = table.pages[p];
      if (k === UNMAPPED || seen.has(k)) continue;
      seen.add(k);
      for (const b of tenants[k] || [])
        if (b.of.request !== own.request || b.of.y0 !== own.y0) found.set(`${b.of.request} ${b.of.y0}`, b);
    }
    return [...found.values()].sort((a, b) => (b.of.y1 - b.of.y0) - (a.of.y1 - a.of.y0));
  };
  const map = cropped(byAddress, chunk, table.pages.length);
  const homes = (b) => {
    const own = b.of || b, out = [];
    if (!b.alias) return out;
    for (let p = Math.floor(own.y0 / chunk); p < Math.ceil(own.y1 / chunk); p++) {
      const home = table.home.get(table.pages[p]);
      if (home !== undefined && home !== p) out.push({ t0: b.t0, t1: b.t1, y0: map.at(home * chunk), y1: map.at(home * chunk) + chunk });
    }
    return out;
  };
  const strip = (c, s) => {
    const perPixel = (s.at.y1 - s.at.y0) / chunk / s.height;
    for (let row = 0; row < s.height; row++) {
      const from = s.at.y1 / chunk - (row + 1) * perPixel;
      const low = clamp(Math.floor(from), 0, chunks - 1), high = clamp(Math.ceil(from + perPixel), low + 1, chunks);
      let sum = 0;
      for (let k = low; k < high; k++) sum += 1 - busy[k];
      c.fillStyle = colour('soft');
      c.fillRect(s.x, s.top + row, s.width * sum / (high - low), 1);
    }
    c.strokeStyle = colour('line');
    c.strokeRect(s.x, s.top, s.width, s.height);
    c.fillStyle = colour('soft');
    c.textAlign = 'center';
    c.textBaseline = 'top';
    c.fillText('idle %', s.x + s.width / 2 - 2, s.top + s.height + 18);
  };
  const chosen = (b) => showTenants(plan, b, others(b));
  const scenes = {
    addresses: { ...map, marksOf: homes, chosen, describe: (b) => `${tensorText(plan, b)}; at ${size(b.at)} of the window` +
      (b.alias ? ', at a second address: outlines mark where its chunks appear first' : '') +
      `; its chunks serve ${count(others(b).length)} other tensors at other times (click for them)` },
    chunks: { boxes: parts, extent: chunks * chunk, marksOf: () => [], chosen, strip,
              describe: (b) => `chunk ${count(Math.floor(b.y0 / chunk))}` +
                (b.y1 - b.y0 > chunk ? ` to ${count(Math.ceil(b.y1 / chunk) - 1)}` : '') + `: ${tensorText(plan, b)}` +
                (b.alias ? ', at a second address' : '') + `; ${count(others(b).length)} other tensors use its chunks; ` +
                `the chunk is idle ${(100 * (1 - busy[Math.floor(b.y0 / chunk)])).toFixed(1)} % of the time` },
  };
  const used = new Set(byAddress.map((b) => b.cls));
  classes.forEach((name, k) => {
    if (!used.has(k)) return;
    const span = document.createElement('span');
    span.append(swatch(name), classNames[k]);
    byId('map-key').append(span);
  });
  const drawing = picture(plan, scenes.addresses);
  for (const radio of document.querySelectorAll('input[name=scene]'))
    radio.addEventListener('change', () => { if (radio.checked) drawing.show(scenes[radio.value]); });
  unitChanged.push(drawing.redraw);
  onColours(drawing.redraw);
}

/* ---- the beginning ---- */

if (data.run) makeRun();
if (data.job) {
  const unit = byId('unit');
  if (!times.length) unit.closest('label').remove();
  unit.addEventListener('change', () => {
    inSeconds = unit.value === 'seconds';
    unitChanged.forEach((draw) => draw());
    fillMoment();
  });
  makeLive();
  makeSides();
  if (data.plan) makePlan(data.plan);
  else byId('map').innerHTML = '<h2>The plan</h2><p>Nothing repeats in this recording, so there is no plan to draw.</p>';
}
