// Curves of a job: lines, areas and dots in a figure with an axis below, which is time unless `write` says otherwise.
import { chooseStep } from "./painting.js";
import { data, html, writeInstant } from "./view.js";

const [WIDTH, HEIGHT, AXIS] = [480, 120, 18];

export const writeNumber = (number) => String(Number(number.toPrecision(3)));

// Shows what is between `from` and `to`. A line, an area and a dot have a `kind` for the style, and points of two numbers each.
export function Curve({ label, from, to, most, least = 0, lines = [], areas = [], dots = [], unit, step = 0, write = writeInstant, children }) {
  const room = data.epoch === null || step ? 90 : 230;
  const length = Math.max(1e-9, to - from);
  const x = (at) => ((at - from) / length) * WIDTH;
  const y = (value) => HEIGHT - ((value - least) / Math.max(1e-9, most - least)) * (HEIGHT - 6);
  const draw = (points) => points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const apart = step || chooseStep((length / WIDTH) * room);
  const ticks = [];
  for (let at = Math.ceil(from / apart) * apart; at <= to; at += apart) ticks.push(at);
  const anchor = (at) => (x(at) < room / 2 ? "start" : x(at) > WIDTH - room / 2 ? "end" : "middle");
  // A label for which there is no room is left out.
  let taken = -Infinity;
  const labelled = ticks.filter((at) => {
    const left = x(at) - { start: 0, middle: room / 2, end: room }[anchor(at)];
    if (!step && left < taken) return false;
    taken = left + room;
    return true;
  });
  return html`<figure class="curve"><h3>${label}</h3>
    <p class="quiet">${writeNumber(least)} to ${writeNumber(most)} ${unit}</p>
    <svg viewBox=${`0 -2 ${WIDTH} ${HEIGHT + AXIS + 2}`} role="img" aria-label=${label}>
      ${ticks.map((at) => html`<line x1=${x(at)} x2=${x(at)} y1="0" y2=${HEIGHT} />`)}
      <line x1="0" x2=${WIDTH} y1=${HEIGHT} y2=${HEIGHT} />
      ${areas.map(({ kind, points }) => html`<polygon class=${kind} points=${draw(points)} />`)}
      ${lines.map(({ kind, points }) => html`<polyline class=${kind} points=${draw(points)} />`)}
      ${dots.map(({ kind, point: [at, value], sure = 1 }) => kind === "came" ? html`<rect class=${kind} x=${x(at) - 3} y=${y(value) - 3} width="6" height="6" />`
        : html`<circle class=${kind} cx=${x(at)} cy=${y(value)} r="5" fill-opacity=${sure} />`)}
      ${labelled.map((at) => html`<text x=${x(at)} y=${HEIGHT + AXIS - 4} text-anchor=${anchor(at)}>${write(at)}</text>`)}
    </svg><figcaption>${children}</figcaption></figure>`;
}
