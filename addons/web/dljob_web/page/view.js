// What the views share: the data, how numbers and times are written, and colours.
import { h } from "./vendor/preact.js";
import { default as htm } from "./vendor/htm.js";

export const html = htm.bind(h);

// What is shown. The same objects for good, whose content is another when a live page has news.
export const data = {};

// GPUs from above, each with the node that it is on.
export const lanes = [];

// By the number of a job, because each picture asks for many.
const namespaceNumbers = [];
const numbers = new Map();

// Shows other data from now on; returns by how many seconds its begin is later than before.
export function take(fresh) {
  const later = data.epoch ? fresh.epoch - data.epoch : 0;
  Object.assign(data, fresh);
  lanes.length = namespaceNumbers.length = 0;
  numbers.clear();
  for (const node of data.nodes) for (const lane of node.lanes) lanes.push({ ...lane, node: node.name });
  const namespaces = new Map();
  for (const [number, { name, namespace }] of data.jobs.entries()) {
    if (!namespaces.has(namespace)) namespaces.set(namespace, namespaces.size);
    namespaceNumbers.push(namespaces.get(namespace));
    numbers.set(name, number);
  }
  return later;
}

// Shows nothing from now on: what was shown may be for another user.
export function forget() {
  for (const key of Object.keys(data)) delete data[key];
  lanes.length = namespaceNumbers.length = 0;
  numbers.clear();
}

// The number of the first entry of a flat list, `stride` numbers each, whose number at `offset` is above `value`.
export function firstAbove(list, stride, offset, value) {
  let low = 0;
  let high = list.length / stride;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle * stride + offset] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

export function writeLength(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60]];
  for (const [position, [name, size]] of units.entries()) {
    if (seconds < size) continue;
    const [lower, part] = units[position + 1] || ["s", 1];
    const whole = Math.floor(seconds / size);
    const rest = Math.floor((seconds - whole * size) / part);
    return rest ? `${whole} ${name} ${rest} ${lower}` : `${whole} ${name}`;
  }
  return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
}

export function writeInstant(at) {
  if (data.epoch !== null) return new Date((data.epoch + at) * 1000).toLocaleString();
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const days = Math.floor(at / 86400);
  return `${days ? `${days} d ` : ""}${two((at % 86400) / 3600)}:${two((at % 3600) / 60)}:${two(at % 60)}`;
}

export const writeHours = (gpuSeconds) =>
  gpuSeconds < 3600 ? `${gpuSeconds.toFixed(0)} GPU-s` : `${(gpuSeconds / 3600).toFixed(1)} GPU-h`;

// The golden angle keeps neighbours apart, however many they are. Each is written once, because a picture asks for thousands.
const colours = [];
export function colourOf(number, by) {
  const place = by === "namespace" ? namespaceNumbers[number] : number;
  colours[place] ||= `hsl(${(place * 137.508 + 205) % 360} 58% 64%)`;
  return colours[place];
}

export const numberOfJob = (name) => (numbers.has(name) ? numbers.get(name) : -1);

export const sumHeld = (job) => job.trained + job.changing + job.failing;

export function writeOutcome(job) {
  if (job.outcome) return job.outcome;
  return sumHeld(job) > 0 ? "not over" : "waits";
}

// A decision, or something else that happened, in the words of the record.
export function Entry({ entry, open }) {
  const expected = entry.expected;
  return html`<div class="entry">
    <p><b>${entry.name}</b> <time>${writeInstant(entry.at)}</time>
      ${entry.is_decision && entry.old !== entry.new ? html` <span class="gpus">${entry.old} → ${entry.new} GPUs</span>` : null}</p>
    ${entry.sentence ? html`<p>${entry.sentence}</p>` : null}
    ${entry.where ? html`<p class="quiet">on ${entry.where}</p>` : null}
    ${expected ? html`<p class="quiet">Expected: ${describeExpected(expected)}.</p>` : null}
    ${entry.cost !== null ? html`<p class="quiet">What came: ${entry.how ? `${entry.how}, ` : ""}${writeLength(entry.cost)} without training.</p>` : null}
    ${entry.for_job && open ? html`<p><button class="link" onClick=${() => open(entry.for_job)}>${entry.for_job}</button></p>` : null}
  </div>`;
}

function describeExpected(expected) {
  const parts = [];
  if (expected.iterations_per_second !== null) {
    const sure = Math.round(expected.confidence * 100);
    parts.push(`${expected.iterations_per_second.toPrecision(3)} iterations/s (confidence ${sure} %)`);
  }
  if (expected.remaining_seconds !== null) parts.push(`the end in ${writeLength(expected.remaining_seconds)}`);
  parts.push(`${writeLength(expected.pause_seconds)} without training`);
  return parts.join(", ");
}
