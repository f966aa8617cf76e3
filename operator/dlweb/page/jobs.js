// The view of jobs: a table, and of the one that is chosen its history and its speed.
import { Component } from "./vendor/preact.js";
import { data, Entry, html, numberOfJob, sumHeld, writeHours, writeInstant, writeOutcome } from "./view.js";

const MOST_ROWS = 300;

const COLUMNS = [
  ["Job", (job) => job.name],
  ["GPUs at most", (job) => job.gpus],
  ["GPU time", sumHeld],
  ["Changes", (job) => job.changes],
  ["Outcome", writeOutcome],
];

export class Jobs extends Component {
  constructor(props) {
    super(props);
    this.state = { word: "", column: -1, sign: 1 };
  }

  sort(column) {
    const sign = column === this.state.column ? -this.state.sign : column ? -1 : 1;
    this.setState({ column, sign });
  }

  list() {
    const { word, column, sign } = this.state;
    const found = data.jobs.filter((job) => job.name.toLowerCase().includes(word.toLowerCase()));
    if (column < 0) return found;
    const of = COLUMNS[column][1];
    return found.sort((one, other) => sign * (of(one) < of(other) ? -1 : of(one) > of(other) ? 1 : 0));
  }

  render({ place, open }) {
    const found = this.list();
    const chosen = data.jobs[numberOfJob(place.job)];
    return html`<section class="split">
      <div>
        <div class="tools"><label>Name contains <input type="search" value=${this.state.word} onInput=${(event) => this.setState({ word: event.target.value })} /></label>
          <span class="quiet">${found.length} jobs${found.length > MOST_ROWS ? `, the first ${MOST_ROWS} are shown` : ""}</span></div>
        <div class="wide"><table>
          <thead><tr>${COLUMNS.map(([name], column) => html`<th scope="col" class=${column && column < 4 ? "number" : ""} aria-sort=${this.state.column === column ? (this.state.sign > 0 ? "ascending" : "descending") : "none"}>
            <button class="link" onClick=${() => this.sort(column)}>${name}</button></th>`)}</tr></thead>
          <tbody>${found.slice(0, MOST_ROWS).map((job) => html`<tr class=${job === chosen ? "chosen" : ""}>
            <th scope="row"><button class="link" onClick=${() => open(job.name)}>${job.name}</button></th>
            <td>${job.gpus}</td><td>${writeHours(sumHeld(job))}</td><td>${job.changes}</td><td class="word">${writeOutcome(job)}</td>
          </tr>`)}</tbody>
        </table></div>
      </div>
      <div class="told" aria-live="polite">${chosen ? html`<${Job} job=${chosen} open=${open} />` : html`<p class="quiet">Choose a job for its history.</p>`}</div>
    </section>`;
  }
}

function Job({ job, open }) {
  return html`<h2>${job.name}</h2>
    <p class="quiet">${[
      job.model, job.options.length ? `runs on ${job.options.join(", ")} GPUs` : "", `priority ${job.priority}`,
      job.submitted === null ? "" : `submitted ${writeInstant(job.submitted)}`,
      job.ended === null ? writeOutcome(job) : `${job.outcome} ${writeInstant(job.ended)}`,
    ].filter(Boolean).join(" · ")}</p>
    ${job.message ? html`<p>${job.message}</p>` : null}
    <p>Trained ${writeHours(job.trained)}, lost ${writeHours(job.changing)} to changes and ${writeHours(job.failing)} to failures.</p>
    <${Speed} job=${job} />
    <h3>History</h3>
    ${job.history.length ? html`<ol class="history">${job.history.map((entry) => html`<li><${Entry} entry=${entry} open=${open} /></li>`)}</ol>` : html`<p class="quiet">The record has no decision about it.</p>`}`;
}

// Its speed as a line, and the share of its iterations that is done as another one.
function Speed({ job }) {
  const { speeds } = job;
  if (speeds.length < 6) return null;
  const [width, height] = [480, 110];
  const begin = speeds[0];
  const length = Math.max(1e-9, speeds[speeds.length - 3] - begin);
  let most = 0;
  for (let at = 2; at < speeds.length; at += 3) most = Math.max(most, speeds[at]);
  const fast = [];
  const done = [];
  let last = height;
  for (let at = 0; at < speeds.length; at += 3) {
    const x = (((speeds[at] - begin) / length) * width).toFixed(1);
    const y = (height - (most ? speeds[at + 2] / most : 0) * (height - 4)).toFixed(1);
    // A speed holds until the next one.
    fast.push(`${x},${last}`, `${x},${y}`);
    last = y;
    if (speeds[at + 1] >= 0) done.push(`${x},${(height - speeds[at + 1] * (height - 4)).toFixed(1)}`);
  }
  return html`<figure><svg viewBox=${`0 0 ${width} ${height + 2}`} role="img" aria-label=${`Speed, at most ${most.toPrecision(3)} iterations per second, and progress`}>
    <polyline class="done" points=${done.join(" ")} /><polyline class="fast" points=${fast.join(" ")} /></svg>
    <figcaption><span class="fast">Speed</span>, at most ${most.toPrecision(3)} iterations/s; <span class="done">iterations done</span>, up to ${Math.max(0, Math.round(speeds[speeds.length - 2] * 100))} %.
      ${writeInstant(begin)} to ${writeInstant(begin + length)}</figcaption></figure>`;
}
