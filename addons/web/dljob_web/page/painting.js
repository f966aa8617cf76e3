// Paints the lanes on a canvas: only what is in sight, and of what is smaller than a pixel one thing a pixel.
import { colourOf, data, firstAbove, lanes, writeInstant } from "./view.js";

export const AXIS = 24;
const GAP = 8;
const COLOURS = ["idle", "others", "wait", "out", "text", "quiet", "line"];

// Where each GPU is, from above; nodes are apart.
export function layOut(height) {
  const gaps = data.nodes.length * GAP;
  const row = Math.max(5, Math.min(26, Math.floor((height - AXIS - gaps) / Math.max(1, lanes.length))));
  const tops = [];
  let top = 0;
  for (const [number, lane] of lanes.entries()) {
    if (number && lane.node !== lanes[number - 1].node) top += GAP;
    tops.push(top);
    top += row;
  }
  return { row, tops, total: top };
}

const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 604800, 2419200];

// The seconds between two labels of an axis of time, at least so many.
export const chooseStep = (least) => STEPS.find((each) => each >= least) || Math.ceil(least / STEPS.at(-1)) * STEPS.at(-1);

export const gutterOf = (width) => (width < 520 ? 92 : 132);

function makeHatch(context, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  for (const shift of [-6, 0, 6]) {
    pen.beginPath();
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

// Leaves a line between two jobs, as far as there is room for it.
const widthOf = (left, right) => Math.max(1, right - left - (right - left > 4 ? 1 : 0));

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.hatch = makeHatch(this.context, "rgba(0,0,0,.62)");
  }

  paint(sight) {
    const { width, height } = sight;
    const scale = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    const style = getComputedStyle(this.canvas);
    // Read once for a picture, because each question to the style takes long.
    this.colours = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.sight = sight;
    this.gutter = gutterOf(width);
    this.perSecond = (width - this.gutter) / (sight.to - sight.from);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.font = "12px system-ui, sans-serif";
    this.context.textBaseline = "middle";
    this.paintLanes();
    this.paintAxis();
  }

  x(at) {
    return this.gutter + (at - this.sight.from) * this.perSecond;
  }

  paintLanes() {
    const { context, sight } = this;
    const { row, tops } = sight.layout;
    context.save();
    context.beginPath();
    context.rect(0, AXIS, sight.width, sight.height - AXIS);
    context.clip();
    const first = Math.max(0, firstAbove(tops, 1, 0, sight.scroll) - 1);
    for (let number = first; number < lanes.length; number += 1) {
      const top = AXIS + tops[number] - sight.scroll;
      if (top > sight.height) break;
      this.paintLane(lanes[number], top, row - (row > 7 ? 2 : 1));
      this.paintNames(number, top, row, number === first);
    }
    if (sight.selected) this.paintSelected(sight.selected);
    context.restore();
  }

  // Calls back with begin and end in pixels of each entry in sight; entries within one pixel are one.
  each(list, stride, from, to, call) {
    const count = list.length / stride;
    let number = firstAbove(list, stride, 1, from);
    while (number < count && list[number * stride] < to) {
      const begin = Math.max(this.gutter, this.x(Math.max(from, list[number * stride])));
      const end = Math.min(this.sight.width, this.x(Math.min(to, list[number * stride + 1])));
      if (end - begin >= 1) {
        call(begin, end, number);
        number += 1;
      } else {
        call(Math.floor(begin), Math.floor(begin) + 1, number);
        const next = this.sight.from + (Math.floor(begin) + 1 - this.gutter) / this.perSecond;
        number = Math.max(number + 1, firstAbove(list, stride, 1, next));
      }
    }
  }

  // Calls back with begin and end of each time in sight, at least half a pixel long, in which no job has the GPU.
  eachGap({ spans }, from, to, call) {
    const least = 0.5 / this.perSecond;
    let begin = from;
    for (let at = firstAbove(spans, 4, 1, from) * 4; at < spans.length && spans[at] < to; at += 4) {
      if (spans[at] - begin >= least) call(begin, spans[at]);
      begin = Math.max(begin, spans[at + 1]);
    }
    if (to - begin >= least) call(begin, to);
  }

  paintLane(lane, top, height) {
    const { context, sight } = this;
    const { from, to } = sight;
    const begin = Math.max(this.gutter, this.x(lane.known));
    const end = Math.min(sight.width, this.x(data.length));
    if (end <= begin) return;
    context.fillStyle = this.colours.idle;
    context.fillRect(begin, top, end - begin, height);
    context.fillStyle = this.colours.wait;
    const edge = height > 8 ? 2 : 1;
    this.eachGap(lane, Math.max(from, lane.known), Math.min(to, data.length), (begins, ends) =>
      this.each(data.waiting, 2, begins, ends, (left, right) => {
        context.fillRect(left, top, right - left, edge);
        context.fillRect(left, top + height - edge, right - left, edge);
      }));
    context.fillStyle = this.colours.out;
    this.each(lane.outages, 2, from, to, (left, right) => context.fillRect(left, top, right - left, height));
    this.each(lane.others, 2, from, to, (left, right) => {
      const block = { left, width: widthOf(left, right), top, height, name: "another job", colour: this.colours.others };
      this.fill(block);
      this.paintName(block);
    });
    this.each(lane.spans, 4, from, to, (left, right, number) => this.paintSpan(lane, number, left, right, top, height));
  }

  paintSpan(lane, number, left, right, top, height) {
    const { context, sight } = this;
    const { spans } = lane;
    const [begin, end, job] = [spans[number * 4], spans[number * 4 + 1], spans[number * 4 + 2]];
    const block = { left, width: widthOf(left, right), top, height, name: data.jobs[job].name, colour: colourOf(job, sight.by) };
    this.fill(block);
    if (block.width < 3) return;
    context.fillStyle = this.hatch;
    this.each(data.jobs[job].pauses, 2, Math.max(begin, sight.from), Math.min(end, sight.to), (from, to) =>
      context.fillRect(from, top, to - from, height));
    this.paintName(block);
  }

  fill({ left, width, top, height, colour }) {
    this.context.fillStyle = colour;
    this.context.fillRect(left, top, width, height);
  }

  paintName({ left, width, top, height, name, colour }) {
    if (width <= 40 || height <= 10) return;
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(left, top, width - 3, height);
    context.clip();
    // On a ground of its own, because letters on hatches are hard to read.
    context.fillStyle = colour;
    context.fillRect(left + 2, top + 1, context.measureText(name).width + 6, height - 2);
    context.fillStyle = "#111";
    context.fillText(name, left + 5, top + height / 2 + 0.5);
    context.restore();
  }

  paintNames(number, top, row, isFirst) {
    const { context } = this;
    const lane = lanes[number];
    const isNew = isFirst || lane.node !== lanes[number - 1].node;
    context.fillStyle = this.colours.text;
    if (isNew) {
      context.save();
      context.beginPath();
      context.rect(0, top - 4, this.gutter - 34, 24);
      context.clip();
      context.fillText(lane.node, 4, top + Math.max(8, row / 2));
      context.restore();
    }
    if (row < 13) return;
    context.fillStyle = this.colours.quiet;
    context.textAlign = "right";
    context.fillText(String(lane.number), this.gutter - 8, top + row / 2);
    context.textAlign = "left";
  }

  paintSelected({ lane, span }) {
    const { context, sight } = this;
    const [begin, end] = lanes[lane].spans.slice(span * 4, span * 4 + 2);
    const left = Math.max(this.gutter, this.x(begin));
    const right = Math.min(sight.width, this.x(end));
    if (right < left) return;
    context.strokeStyle = this.colours.text;
    context.lineWidth = 2;
    context.strokeRect(left, AXIS + sight.layout.tops[lane] - sight.scroll, Math.max(2, right - left - 1), sight.layout.row - 2);
  }

  paintAxis() {
    const { context, sight } = this;
    const step = chooseStep((data.epoch === null ? 92 : 170) / this.perSecond);
    context.fillStyle = this.colours.quiet;
    context.strokeStyle = this.colours.line;
    context.lineWidth = 1;
    for (let at = Math.ceil(sight.from / step) * step; at <= sight.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      context.beginPath();
      context.moveTo(x, AXIS - 5);
      context.lineTo(x, AXIS);
      context.stroke();
      context.textAlign = x > sight.width - 40 ? "right" : x < this.gutter + 40 ? "left" : "center";
      context.fillText(writeInstant(at), x, AXIS / 2 - 1);
    }
    context.textAlign = "left";
  }
}
