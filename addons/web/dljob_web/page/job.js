// The view of one job: what the record has of it as curves, and on a live page what is so now.
import { Component } from "./vendor/preact.js";
import { Curve, writeNumber } from "./curves.js";
import { ask, isRefusal } from "./live.js";
import { data, Entry, html, writeHours, writeInstant, writeLength, writeOutcome } from "./view.js";

// Of many decisions, the expectations of the latest are drawn.
const MOST_FANNED = 12;

const writePath = (name) => name.split("/").map(encodeURIComponent).join("/");

const writeShare = (share) => `${Math.round(share * 100)} %`;

export class Job extends Component {
  constructor(props) {
    super(props);
    this.state = { told: null, problem: null };
    this.look();
  }

  componentWillReceiveProps({ at, job }) {
    if (at !== this.props.at && job.ended === null) this.look();
  }

  componentWillUnmount() {
    this.isGone = true;
  }

  // A file has no server, and a server has nothing of a job that was removed.
  async look() {
    const { at, job } = this.props;
    if (!at || job.outcome === "Removed") return;
    this.looks = (this.looks || 0) + 1;
    const { looks } = this;
    let found;
    try {
      found = { told: await (await ask(`/api/v1/jobs/${writePath(job.name)}`)).json(), problem: null };
    } catch (error) {
      const isAbsent = error.status === 404;
      found = { problem: isAbsent ? null : error.message, ...(isAbsent || isRefusal(error) ? { told: null } : {}) };
    }
    // An answer that a later question has overtaken does not count.
    if (!this.isGone && looks === this.looks) this.setState(found);
  }

  render({ job, open }, { told, problem }) {
    const status = (told && told.job.status) || {};
    const now = readNow(job, status);
    return html`<h2>${job.name}</h2>
      <p class="quiet">${[
        job.model, job.options.length ? `runs on ${job.options.join(", ")} GPUs` : "", `priority ${job.priority}`,
        job.submitted === null ? "" : `submitted ${writeInstant(job.submitted)}`,
        job.ended === null ? status.phase || writeOutcome(job) : `${job.outcome} ${writeInstant(job.ended)}`,
      ].filter(Boolean).join(" · ")}</p>
      ${problem === null ? null : html`<p class="missing" role="alert">${problem}</p>`}
      ${job.message ? html`<p>${job.message}</p>` : null}
      ${told && job.ended === null ? html`<p>Now: ${told.message}</p>${told.assumptions.map((each) => html`<p class="quiet">${each}</p>`)}` : null}
      <p>Trained ${writeHours(job.trained)}, lost ${writeHours(job.changing)} to changes and ${writeHours(job.failing)} to failures.</p>
      <div class="curves">
        <${Progress} job=${job} now=${now} />
        <${Speed} job=${job} now=${now} />
        <${Metric} job=${job} now=${now} name=${told && nameMetric(told.job)} />
        <${Speeds} job=${job} now=${now} />
      </div>
      ${told === null ? null : html`<${Output} name=${job.name} />`}
      <${Conditions} conditions=${status.conditions || []} />
      <h3>History</h3>
      ${job.history.length ? html`<ol class="history">${job.history.map((entry) => html`<li><${Entry} entry=${entry} open=${open} /></li>`)}</ol>` : html`<p class="quiet">The record has no decision about it.</p>`}`;
  }
}

const nameMetric = ({ spec }) => spec?.training?.target?.metric;

// How things are with a job that is not over: by its status on a live page, else by the end of the record.
function readNow(job, { progress, allocation }) {
  if (job.ended !== null) return null;
  const [at, share, speed] = job.speeds.length ? job.speeds.slice(-3) : [data.length, -1, 0];
  const decided = job.history.filter((each) => each.is_decision && each.name !== "wait").at(-1);
  const now = { at, share, speed, gpus: decided ? decided.new : 0 };
  if (!progress || data.epoch === null) return now;
  const counted = Date.parse(progress.countedAt || progress.iteratedAt) / 1000 - data.epoch;
  return {
    at: counted || data.length, share: progress.fraction ?? share, speed: progress.iterationsPerSecond ?? speed, gpus: allocation?.gpus ?? 0,
    metric: progress.metric, end: progress.etaSeconds, low: progress.etaLowSeconds, high: progress.etaHighSeconds,
  };
}

// The points of every `stride` numbers of a list, as a pair of the first and the one at `offset`.
function pair(list, stride, offset) {
  const points = [];
  for (let at = 0; at < list.length; at += stride) points.push([list[at], list[at + offset]]);
  return points;
}

// A value holds until the next one.
const hold = (points) => points.flatMap(([at, value], number) => (number ? [[at, points[number - 1][1]], [at, value]] : [[at, value]]));

function beginOf(job) {
  return job.submitted ?? job.speeds[0] ?? 0;
}

// The share of its iterations that is done, and where each decision and the status expect it to end.
function Progress({ job, now }) {
  const points = pair(job.speeds, 3, 1).filter(([, share]) => share >= 0);
  const expected = job.history.filter(({ expected }) => expected && expected.remaining_seconds !== null).slice(-MOST_FANNED);
  const ends = expected.map((each) => each.at + each.expected.remaining_seconds);
  if (!points.length && !ends.length) return null;
  // On the line between two reports.
  const shareAt = (at) => {
    const before = points.findLast((point) => point[0] <= at) || [at, 0];
    const after = points.find((point) => point[0] > at) || before;
    return before[1] + ((after[1] - before[1]) * (at - before[0])) / (after[0] - before[0] || Infinity);
  };
  const lines = expected.map((each, number) => ({ kind: "foreseen", points: [[each.at, shareAt(each.at)], [ends[number], 1]] }));
  const areas = [];
  const [share, at] = now ? [Math.max(0, now.share), now.at] : [];
  if (now?.high !== undefined) areas.push({ kind: "fan", points: [[at, share], [at + now.low, 1], [at + now.high, 1]] });
  if (now?.end !== undefined) lines.push({ kind: "fore", points: [[at, share], [at + now.end, 1]] });
  const last = now ? at + (now.high ?? now.end ?? 0) : job.ended;
  const to = now ? Math.max(last, ...ends.slice(-1)) : last;
  // The record may have a report that is later than the status, and before the first one a job has come from nothing.
  const before = now ? points.filter(([time]) => time <= at) : points;
  const start = job.history.find((each) => each.is_decision && each.new && now && each.at <= at);
  const reported = before.length || !start ? before : [[start.at, 0]];
  lines.push({ kind: "done", points: now ? [...reported, [at, share]] : points });
  return html`<${Curve} label="Progress" unit="% of its iterations" from=${beginOf(job)} to=${to} most=${100}
    lines=${lines.map(inPercent)} areas=${areas.map(inPercent)}>
    <span class="done">Done</span>, last reported: ${writeShare(now ? share : (points.at(-1)?.[1] ?? 0))}.
    ${ends.length ? ` Dashed: the end as each decision expected it, ${[...new Set([Math.min(...ends), Math.max(...ends)].map(writeInstant))].join(" to ")}${expected.length < MOST_FANNED ? "" : `, of the last ${MOST_FANNED}`}.` : ""}
    ${now?.end === undefined && now?.high !== undefined ? ` When it ends is a guess until its speed is measured: in at most ${writeLength(now.high)}.` : ""}
    ${now?.end === undefined ? "" : ` Now the end is expected ${writeInstant(at + now.end)}, in ${writeLength(now.end)}${now.low === undefined ? "" : `; between ${writeLength(now.low)} and ${now.high === undefined ? "an unknown time" : writeLength(now.high)}`}.`}
  <//>`;
}

const inPercent = (drawn) => ({ ...drawn, points: drawn.points.map(([at, share]) => [at, share * 100]) });

// The speed over time, which is 0 from where the job stops or changes until it reports again.
function listCourse({ speeds: reported, history, pauses }, now) {
  const speeds = now ? [...reported, now.at, now.share, now.gpus ? now.speed : 0] : reported;
  const course = [];
  for (let at = 0; at < speeds.length; at += 3) {
    const [time, share, speed, , laterShare, later] = speeds.slice(at, at + 6);
    // The first report after a start comes before a speed is measured.
    course.push([time, speed || (share < 0 || laterShare > share ? later || 0 : 0)]);
  }
  for (const each of history) if (each.is_decision && each.old && !each.new) course.push([each.at, 0]);
  for (let at = 0; at < pauses.length; at += 2) course.push([pauses[at], 0]);
  return course.sort(([one], [other]) => one - other);
}

function Speed({ job, now }) {
  const course = listCourse(job, now);
  if (!job.speeds.length) return null;
  const to = Math.max(now ? now.at : job.ended, course.at(-1)[0]);
  const most = Math.max(...course.map(([, speed]) => speed));
  return html`<${Curve} label="Speed" unit="iterations/s" from=${course[0][0]} to=${to} most=${most} lines=${[{ kind: "fast", points: hold([...course, [to, course.at(-1)[1]]]) }]}>
    <span class="fast">Speed</span>, last reported: ${writeNumber(now ? now.speed : job.speeds.at(-1))} iterations/s.<//>`;
}

function Metric({ job, name, now }) {
  const points = [...pair(job.metrics, 2, 1), ...(now?.metric === undefined ? [] : [[now.at, now.metric]])];
  if (!points.length) return null;
  const values = points.map(([, value]) => value);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return html`<${Curve} label=${name ? `Metric: ${name}` : "Metric of its target"} unit="" from=${points[0][0]} to=${points.at(-1)[0]} least=${least} most=${most} lines=${[{ kind: "fast", points }]}
    dots=${points.length === 1 ? [{ kind: "fast", point: points[0] }] : []}>Last reported: ${values.at(-1)}.<//>`;
}

// By the number of GPUs: the speed that the latest decision for it expected, and the one that was last reported with it.
function listSpeeds(job) {
  const decisions = job.history.filter((each) => each.is_decision && each.name !== "wait");
  const reported = pair(job.speeds, 3, 2).filter(([, speed]) => speed > 0);
  const found = new Map();
  for (const [number, { at, new: gpus, expected, cost }] of decisions.entries()) {
    if (!gpus) continue;
    const row = found.get(gpus) || { gpus };
    if (expected && expected.iterations_per_second !== null) Object.assign(row, { speed: expected.iterations_per_second, sure: expected.confidence });
    // Until the change is over, reports are of the GPUs before.
    const until = decisions[number + 1]?.at ?? Infinity;
    const last = reported.findLast(([time]) => time >= at + (cost ?? 0) && time <= until);
    if (last) row.reported = last[1];
    if (row.speed !== undefined || last) found.set(gpus, row);
  }
  return [...found.values()].sort((one, other) => one.gpus - other.gpus);
}

function Speeds({ job, now }) {
  const rows = listSpeeds(job);
  if (!rows.length) return null;
  const isNow = ({ gpus }) => now !== null && now.gpus === gpus;
  const expected = rows.filter(({ speed }) => speed !== undefined);
  const to = Math.max(...rows.map(({ gpus }) => gpus), ...job.options) + 0.5;
  const at = now && now.gpus && now.speed > 0 ? [{ kind: "here", point: [now.gpus, now.speed] }] : [];
  const most = Math.max(...rows.flatMap(({ speed, reported }) => [speed ?? 0, reported ?? 0]), ...at.map(({ point }) => point[1]));
  return html`<div><${Curve} label="Speed with k GPUs" unit="iterations/s" from=${0} to=${to} most=${most} step=${Math.ceil(to / 10)} write=${String}
    lines=${[{ kind: "fast", points: expected.map(({ gpus, speed }) => [gpus, speed]) }]}
    dots=${[...expected.map(({ gpus, speed, sure }) => ({ kind: "fast", point: [gpus, speed], sure })),
      ...rows.filter(({ reported }) => reported !== undefined).map(({ gpus, reported }) => ({ kind: "came", point: [gpus, reported] })), ...at]}>
    <span class="fast">Expected</span> by the latest decision for this number of GPUs; the paler, the less sure. <span class="done">Squares</span>: last reported with it.${at.length ? html` <span class="here">Ring</span>: now.` : ""}<//>
    <div class="wide" tabindex="0" role="region" aria-label="Speed with k GPUs"><table><thead><tr>${["GPUs", "Expected speed", "Confidence", "Reported speed"].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr class=${isNow(row) ? "chosen" : ""}><td>${row.gpus}${isNow(row) ? ", now" : ""}</td>
        <td>${row.speed === undefined ? "–" : writeNumber(row.speed)}</td><td>${row.speed === undefined ? "–" : writeShare(row.sure)}</td>
        <td>${row.reported === undefined ? "–" : writeNumber(row.reported)}</td></tr>`)}</tbody></table></div></div>`;
}

// The last lines of its training, which the server reads again only when asked.
class Output extends Component {
  constructor(props) {
    super(props);
    this.state = { told: null, problem: null };
    this.read("");
  }

  componentWillReceiveProps({ name }) {
    if (name === this.props.name) return;
    this.setState({ told: null, problem: null });
    this.read("", name);
  }

  async read(node, name = this.props.name) {
    let found;
    try {
      const answer = await ask(`/api/v1/logs/${writePath(name)}${node && `?node=${encodeURIComponent(node)}`}`);
      found = { told: await answer.json(), problem: null };
    } catch (error) {
      // Most viewers of a cluster may see jobs and not their output, which is no trouble.
      found = { told: null, problem: error.message, isRefused: isRefusal(error) };
    }
    if (name === this.props.name) this.setState(found);
  }

  render(_, { told, problem, isRefused }) {
    const nodes = told ? told.nodes : [];
    return html`<h3>Output</h3>
      <p>${nodes.length < 2 ? null : html`<label>Node <select value=${told.node} onChange=${(event) => this.read(event.target.value)}>
        ${nodes.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>${" "}`}
        <button onClick=${() => this.read(told && told.node ? told.node : "")}>Read again</button></p>
      ${problem === null ? null : html`<p class=${isRefused ? "quiet" : "missing"} role=${isRefused ? "status" : "alert"}>${problem}</p>`}
      ${told && told.reason ? html`<p class="quiet">${told.reason}.</p>` : null}
      ${told && told.lines.length ? html`<pre tabindex="0" role="region" aria-label="Output">${told.lines.join("\n")}</pre>` : null}`;
  }
}

function Conditions({ conditions }) {
  if (!conditions.length) return null;
  return html`<h3>Conditions</h3><div class="wide" tabindex="0" role="region" aria-label="Conditions"><table>
    <thead><tr>${["Condition", "Status", "Reason", "Since"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${conditions.map((each) => html`<tr key=${each.type}><th scope="row">${each.type}</th><td class="word">${each.status}</td>
      <td class="word">${each.reason}<br /><span class="quiet">${each.message}</span></td><td class="word">${new Date(each.lastTransitionTime).toLocaleString()}</td></tr>`)}</tbody>
  </table></div>`;
}
