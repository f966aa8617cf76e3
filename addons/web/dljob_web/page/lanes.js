// The view of GPUs over time: what is in sight, how it moves, and what a click tells.
import { Component, createRef } from "./vendor/preact.js";
import { AXIS, gutterOf, layOut, Painter } from "./painting.js";
import { data, Entry, firstAbove, html, lanes, writeInstant, writeLength } from "./view.js";

const LEAST_SECONDS = 1;
const LEAST_HEIGHT = 220;

// The number of the entry, of a list of times in order, in which a time is; -1 is none.
function find(list, stride, at) {
  const number = firstAbove(list, stride, 1, at);
  return number * stride < list.length && list[number * stride] <= at ? number : -1;
}

export class Lanes extends Component {
  constructor(props) {
    super(props);
    this.canvas = createRef();
    this.whole = Math.max(LEAST_SECONDS, data.length);
    const from = Number(props.place.from);
    const to = Number(props.place.to);
    const isSight = to > from && Number.isFinite(to - from);
    this.sight = { from: isSight ? from : 0, to: isSight ? to : this.whole, scroll: 0, selected: null };
    this.select(Number(props.place.gpu), Number(props.place.at));
  }

  componentWillReceiveProps({ news }) {
    if (news !== this.props.news) this.follow(news.later);
  }

  componentDidMount() {
    const canvas = this.canvas.current;
    this.painter = new Painter(canvas);
    this.sizes = new ResizeObserver(() => this.paint());
    this.sizes.observe(canvas);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.paint();
    this.dark.addEventListener("change", this.repaint);
    // Not by the attribute, because a listener that keeps the page from scrolling has to say so.
    canvas.addEventListener("wheel", (event) => this.turn(event), { passive: false });
    this.paint();
  }

  componentDidUpdate() {
    this.paint();
  }

  // Follows a live page: the time goes on, and a sight that reached its end still does.
  follow(later) {
    const whole = Math.max(LEAST_SECONDS, data.length);
    const { from, to } = this.sight;
    const end = to >= this.whole ? whole : Math.max(LEAST_SECONDS, to - later);
    this.sight.from = from > 0 ? Math.max(0, Math.min(from + end - to, end - LEAST_SECONDS)) : 0;
    this.sight.to = end;
    this.whole = whole;
    if (this.told) this.select(this.told.lane, this.told.at - later);
    this.setState({});
  }

  componentWillUnmount() {
    this.sizes.disconnect();
    this.dark.removeEventListener("change", this.repaint);
  }

  paint() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      const canvas = this.canvas.current;
      if (!canvas) return;
      const room = Math.max(LEAST_HEIGHT, window.innerHeight * 0.56);
      const layout = layOut(room);
      const width = canvas.clientWidth;
      const height = Math.round(Math.min(room, layout.total + AXIS + 4));
      // Few GPUs leave the room to what is told of them.
      canvas.style.height = `${height + 2}px`;
      const most = Math.max(0, layout.total + AXIS - height);
      this.sight.scroll = Math.min(most, Math.max(0, this.sight.scroll));
      Object.assign(this.sight, { width, height, layout, by: this.props.place.by });
      this.painter.paint(this.sight);
    });
  }

  // Shows another time, which stays within the record.
  show(from, to) {
    const length = Math.min(this.whole, Math.max(LEAST_SECONDS, to - from));
    const begin = Math.min(this.whole - length, Math.max(0, from));
    this.sight.from = begin;
    this.sight.to = begin + length;
    this.paint();
    clearTimeout(this.later);
    // Browsers refuse a fragment that changes with each picture.
    this.later = setTimeout(() => this.props.go({ from: begin.toFixed(1), to: (begin + length).toFixed(1) }), 300);
  }

  zoom(factor, at) {
    const { from, to } = this.sight;
    const middle = at === undefined ? (from + to) / 2 : at;
    this.show(middle - (middle - from) * factor, middle - (middle - from) * factor + (to - from) * factor);
  }

  pan(share) {
    const { from, to } = this.sight;
    this.show(from + (to - from) * share, to + (to - from) * share);
  }

  timeAt(x) {
    const gutter = gutterOf(this.sight.width);
    return this.sight.from + ((x - gutter) / (this.sight.width - gutter)) * (this.sight.to - this.sight.from);
  }

  turn(event) {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.pan((event.deltaX || event.deltaY) / this.sight.width);
    } else if (event.offsetX < gutterOf(this.sight.width)) {
      this.sight.scroll += event.deltaY;
      this.paint();
    } else {
      this.zoom(Math.exp(event.deltaY * 0.0015), this.timeAt(event.offsetX));
    }
  }

  press(event) {
    this.drag = { x: event.clientX, y: event.clientY, moved: false, ...this.sight };
    event.currentTarget.setPointerCapture(event.pointerId);
  }

  move(event) {
    const drag = this.drag;
    if (!drag) {
      this.point(event);
      return;
    }
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.hypot(x, y) > 4) drag.moved = true;
    if (!drag.moved) return;
    const seconds = (x / (drag.width - gutterOf(drag.width))) * (drag.to - drag.from);
    this.sight.scroll = drag.scroll - y;
    this.show(drag.from - seconds, drag.to - seconds);
  }

  release(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag || drag.moved) return;
    const lane = this.laneAt(event.offsetY);
    if (lane >= 0) this.choose(lane, this.timeAt(event.offsetX));
  }

  // The GPU at a height in the picture; -1 is none.
  laneAt(height) {
    const { tops, row } = this.sight.layout;
    const y = height - AXIS + this.sight.scroll;
    const lane = firstAbove(tops, 1, 0, y) - 1;
    return lane >= 0 && y <= tops[lane] + row ? lane : -1;
  }

  // Names what the pointer is on, because with many GPUs there is no room for names in the picture.
  point({ offsetX, offsetY }) {
    if (!this.sight.layout) return;
    const lane = this.laneAt(offsetY);
    const at = this.timeAt(offsetX);
    let told = "";
    if (lane >= 0) {
      const { node, number, spans, others } = lanes[lane];
      const span = find(spans, 4, at);
      const job = span >= 0 ? data.jobs[spans[span * 4 + 2]].name : find(others, 2, at) >= 0 ? "another job" : "";
      told = `${job && `${job} on `}${node}, GPU ${number}`;
    }
    if (this.canvas.current.title !== told) this.canvas.current.title = told;
  }

  choose(lane, at) {
    this.select(lane, at);
    this.props.go({ gpu: lane, at: at.toFixed(1) });
    this.setState({});
  }

  select(lane, at) {
    this.sight.selected = null;
    this.told = null;
    if (!(lane in lanes) || !(at >= 0 && at <= this.whole)) return;
    const { spans, outages, reasons } = lanes[lane];
    const span = find(spans, 4, at);
    if (span >= 0) this.sight.selected = { lane, span };
    const outage = find(outages, 2, at);
    this.told = { lane, at, outage: outage >= 0 ? reasons[outage] || "no reason is known" : null };
  }

  // Shift and an arrow: the job before or after on the same GPU, or on the next GPU.
  step(key) {
    const { lane, at } = this.told || { lane: 0, at: this.sight.from };
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!sideways) {
      this.choose(Math.min(lanes.length - 1, Math.max(0, lane + (key === "ArrowDown" ? 1 : -1))), at);
      return;
    }
    const { spans } = lanes[lane];
    const here = firstAbove(spans, 4, 1, at);
    const isWithin = this.sight.selected !== null;
    const next = sideways > 0 ? here + (isWithin ? 1 : 0) : here - 1;
    if (next >= 0 && next * 4 < spans.length) this.choose(lane, (spans[next * 4] + spans[next * 4 + 1]) / 2);
  }

  type(event) {
    const moves = {
      ArrowLeft: () => this.pan(-0.15),
      ArrowRight: () => this.pan(0.15),
      ArrowUp: () => { this.sight.scroll -= 40; this.paint(); },
      ArrowDown: () => { this.sight.scroll += 40; this.paint(); },
      "+": () => this.zoom(0.7),
      "=": () => this.zoom(0.7),
      "-": () => this.zoom(1 / 0.7),
      0: () => this.show(0, this.whole),
      Home: () => this.show(0, this.whole),
    };
    const move = event.shiftKey && event.key.startsWith("Arrow") ? () => this.step(event.key) : moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move();
  }

  render({ place, go, open }) {
    const keys = "Arrows move, + and - zoom, 0 shows all, Shift and arrows choose";
    return html`<section>
      <div class="tools">
        <label>Colour by <select value=${place.by} onChange=${(event) => go({ by: event.target.value })}>
          <option value="job">job</option><option value="namespace">namespace</option>
        </select></label>
        <button onClick=${() => this.zoom(0.7)} aria-label="Zoom in">+</button>
        <button onClick=${() => this.zoom(1 / 0.7)} aria-label="Zoom out">−</button>
        <button onClick=${() => this.show(0, this.whole)}>All</button>
        <ul class="legend">
          <li><i class="key change"></i>job changes, does not train</li><li><i class="key idle"></i>idle</li>
          <li><i class="key wait"></i>idle while a job waits</li><li><i class="key out"></i>out of service</li>
          ${lanes.some(({ others }) => others.length) ? html`<li><i class="key held_by_others"></i>held by another job</li>` : null}
        </ul>
      </div>
      <canvas ref=${this.canvas} tabindex="0" role="application" aria-label=${`GPUs over time. ${keys}. The jobs are also a table in the view Jobs.`}
        onPointerDown=${(event) => this.press(event)} onPointerMove=${(event) => this.move(event)}
        onPointerUp=${(event) => this.release(event)} onPointerCancel=${() => { this.drag = null; }}
        onKeyDown=${(event) => this.type(event)}></canvas>
      <div class="told" aria-live="polite">${this.told ? this.tell(open) : html`<p class="quiet">Click a job for the reason of its GPUs. Wheel: zoom; drag: move. ${keys}.</p>`}</div>
    </section>`;
  }

  tell(open) {
    const { lane, at, outage } = this.told;
    const place = `${lanes[lane].node}, GPU ${lanes[lane].number}${lanes[lane].gpu_type ? ` (${lanes[lane].gpu_type})` : ""}`;
    const out = outage === null ? null : html`<p>Out of service: ${outage}</p>`;
    if (!this.sight.selected) {
      const { others } = lanes[lane];
      const block = find(others, 2, at);
      if (block >= 0) {
        const [begin, end] = others.slice(block * 2, block * 2 + 2);
        return html`<h2>another job</h2><p class="quiet">${place}: ${writeInstant(begin)} to ${writeInstant(end)} (${writeLength(end - begin)})</p>
          <p>You may not see the jobs that held this GPU.</p>`;
      }
      const idle = find(data.waiting, 2, at) >= 0 ? "Idle while at least one job waits." : "Idle; no job waits.";
      return html`<h2>${place}</h2><p class="quiet">${writeInstant(at)}</p>${out || html`<p>${idle}</p>`}`;
    }
    const [begin, end, number, decision] = lanes[lane].spans.slice(this.sight.selected.span * 4, this.sight.selected.span * 4 + 4);
    const job = data.jobs[number];
    return html`<h2><button class="link" onClick=${() => open(job.name)}>${job.name}</button></h2>
      <p class="quiet">${place}: ${writeInstant(begin)} to ${writeInstant(end)} (${writeLength(end - begin)})</p>${out}
      ${decision < 0 ? html`<p>No decision gave these GPUs, such as for a new attempt after a crash.</p>` : html`<${Entry} entry=${job.history[decision]} open=${open} />`}`;
  }
}
