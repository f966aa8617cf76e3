// The view of where GPU time went: a bar, a table, and the same as CSV.
import { data, html, writeHours } from "./view.js";

const PARTS = [
  ["trained", "Trained"],
  ["changing", "Lost to changes"],
  ["failing", "Lost to failures"],
  ["idle", "Idle, no job waits"],
  ["idle_while_waiting", "Idle while a job waits"],
  ["out_of_service", "Out of service"],
  // Where the viewer may not see all jobs.
  ["held_by_others", "Held by other jobs"],
];
const HELD = PARTS.slice(0, 3);

export function Usage() {
  const { sums } = data;
  const parts = PARTS.filter(([key]) => key !== "held_by_others" || sums[key] > 0);
  const total = parts.reduce((sum, [key]) => sum + sums[key], 0);
  const share = (part, whole) => (whole ? `${((part / whole) * 100).toFixed(1)} %` : "–");
  return html`<section>
    <h2>Of ${writeHours(total)}</h2>
    <${Bar} parts=${parts.map(([key, name]) => [key, name, sums[key]])} total=${total} />
    <div class="wide" tabindex="0" role="region" aria-label="Parts of the GPU time"><table><thead><tr><th scope="col">What</th><th scope="col" class="number">GPU time</th><th scope="col" class="number">Share</th></tr></thead>
      <tbody>${parts.map(([key, name]) => html`<tr><th scope="row"><i class=${`key ${key}`}></i>${name}</th><td>${writeHours(sums[key])}</td><td>${share(sums[key], total)}</td></tr>`)}</tbody></table></div>
    <h2>By namespace</h2>
    <div class="wide" tabindex="0" role="region" aria-label="GPU time by namespace"><table><thead><tr><th scope="col">Namespace</th><th scope="col" class="number">Trained</th><th scope="col" class="number">Lost to changes</th><th scope="col" class="number">Lost to failures</th><th scope="col" class="number">Idle while it waited longest</th><th scope="col">Of all GPU time</th></tr></thead>
      <tbody>${sums.namespaces.map(([name, ...held]) => html`<tr><th scope="row">${name || "(none)"}</th>${held.map((seconds) => html`<td>${writeHours(seconds)}</td>`)}
        <td class="bar"><${Bar} parts=${HELD.map(([key, title], place) => [key, title, held[place]])} total=${total} /></td></tr>`)}</tbody></table></div>
    ${sums.causes.length > 0 && html`<h2>Why jobs waited while GPUs were idle</h2>
      <div class="wide" tabindex="0" role="region" aria-label="Idle GPU time by cause"><table><thead><tr><th scope="col">Cause</th><th scope="col" class="number">GPU time</th><th scope="col" class="number">Share</th></tr></thead>
        <tbody>${sums.causes.map(([cause, seconds]) => html`<tr><th scope="row">${cause || "No decision yet"}</th><td>${writeHours(seconds)}</td><td>${share(seconds, total)}</td></tr>`)}</tbody></table></div>`}
    <p><button onClick=${download}>Download as CSV</button></p>
  </section>`;
}

function Bar({ parts, total }) {
  let left = 0;
  const label = parts.map(([, name, seconds]) => `${name}: ${writeHours(seconds)}`).join(", ");
  return html`<svg class="stack" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    <rect class="rest" width="1000" height="24" />
    ${parts.map(([key, , seconds]) => {
      const width = total ? (seconds / total) * 1000 : 0;
      left += width;
      return html`<rect class=${key} x=${left - width} width=${width} height="24" />`;
    })}</svg>`;
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data.sums.csv], { type: "text/csv" }));
  link.download = "gpu-time.csv";
  link.click();
  // Not at once, because some browsers read it after the click.
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
