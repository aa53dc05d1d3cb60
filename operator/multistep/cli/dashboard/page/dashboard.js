// The dashboard: keeps a row for each sweep and trial, and draws the rows that match the filters. Text from the cluster is
// assigned only to textContent, so it is never parsed as HTML.
"use strict";

const MAX_ROWS = 500;
const OUTPUT_CHARACTERS = 500_000;
const COLUMNS = [
  ["name", "Trial"], ["outcome", "Outcome"], ["step", "Step"], ["score", "Score"], ["reward", "Reward"], ["seconds", "Time"], ["task", "Task"],
  ["agent", "Agent"], ["sweep", "Sweep"], ["message", "Message"],
];
const rows = { sweep: new Map(), trial: new Map() };
const order = { column: "started", down: true };
const $ = (id) => document.getElementById(id);
let shown = null; // the trial of the open dialog
let reading = null; // the AbortController of the request for that trial's output
let drawing = false;

function element(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function seconds(row) {
  if (!row.started) return 0;
  return Math.max(0, ((row.completed ? Date.parse(row.completed) : Date.now()) - Date.parse(row.started)) / 1000);
}

function duration(value) {
  if (value === undefined || value === null) return "-";
  if (value < 120) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 120 ? `${minutes} min ${Math.round(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function chosen() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [wanted, sweep] = [$("outcome").value, $("sweep").value];
  const text = (row) => [row.namespace, row.name, row.sweep, row.task, row.agent, row.outcome, row.step, row.message].join(" ").toLowerCase();
  return [...rows.trial.values()].filter(
    (row) => (!wanted || row.outcome === wanted) && (!sweep || row.sweep === sweep) && words.every((word) => text(row).includes(word)),
  );
}

function sorted(found) {
  const value = (row) => (order.column === "seconds" ? seconds(row) : order.column === "started" ? row.started || row.created || "" : row[order.column] ?? "");
  const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return found.sort((a, b) => compare(value(a), value(b)) * (order.down ? -1 : 1) || compare(a.name, b.name));
}

function trialRow(row) {
  const made = document.createElement("tr");
  const head = element("th");
  head.scope = "row";
  const open = element("button", row.name, "plain");
  open.addEventListener("click", () => openTrial(row.namespace, row.name));
  head.append(open);
  made.append(head);
  for (const [column] of COLUMNS.slice(1)) {
    const text = column === "seconds" ? duration(row.started ? seconds(row) : null) : row[column] ?? "-";
    made.append(element("td", text, column === "outcome" ? row.level : column === "seconds" ? "n" : ""));
  }
  return made;
}

function sweepRow(row) {
  const made = document.createElement("tr");
  const head = element("th");
  head.scope = "row";
  const open = element("button", row.name, "plain");
  open.addEventListener("click", () => { $("sweep").value = row.name; draw(); $("trials").scrollIntoView(); });
  head.append(open, element("div", row.message ?? "", "soft"));
  const progress = element("td");
  if (row.trials) {
    const bar = document.createElement("progress");
    [bar.max, bar.value] = [row.trials.total || 1, row.trials.finished];
    bar.setAttribute("aria-label", `${row.trials.finished} of ${row.trials.total} trials finished`);
    progress.append(bar, element("div", `${row.trials.finished} of ${row.trials.total} finished, ${row.trials.active} active, ${row.trials.failed} failed`, "soft"));
  }
  made.append(head, element("td", row.phase, row.phase === "Failed" || row.phase === "Halting" ? "bad" : ""), progress, element("td", row.score ?? "-"));
  made.append(element("td", row.costUSD === null || row.costUSD === undefined ? "-" : `$${row.costUSD.toFixed(2)}`, "n"));
  made.append(element("td", duration(row.started ? seconds(row) : null), "n"));
  return made;
}

function options(select, values) {
  const wanted = ["", ...[...new Set(values)].filter(Boolean).sort()];
  const [chosenValue, present] = [select.value, [...select.options].map((each) => each.value)];
  if (wanted.join("\n") === present.join("\n")) return;
  select.replaceChildren(...wanted.map((value) => { const made = element("option", value || "all"); made.value = value; return made; }));
  select.value = wanted.includes(chosenValue) ? chosenValue : "";
}

function focusKept(container, replace) {
  const label = container.contains(document.activeElement) ? document.activeElement.textContent : null;
  replace();
  if (label !== null) [...container.querySelectorAll("button")].find((each) => each.textContent === label)?.focus();
}

function draw() {
  drawing = false;
  const trials = [...rows.trial.values()];
  options($("outcome"), trials.map((row) => row.outcome));
  options($("sweep"), trials.map((row) => row.sweep));
  const sweeps = [...rows.sweep.values()].sort((a, b) => String(b.created).localeCompare(String(a.created)));
  focusKept($("sweep-rows"), () => $("sweep-rows").replaceChildren(...sweeps.map(sweepRow)));
  const found = sorted(chosen());
  focusKept($("trial-rows"), () => $("trial-rows").replaceChildren(...found.slice(0, MAX_ROWS).map(trialRow)));
  const first = found.length > MAX_ROWS ? `, the first ${MAX_ROWS} are shown` : "";
  $("count").textContent = `${found.length} of ${trials.length} trials${first}`;
  $("sweeps").hidden = sweeps.length === 0;
}

function drawSoon() {
  if (!drawing) requestAnimationFrame(draw);
  drawing = true;
}

function heads() {
  for (const [column, title] of COLUMNS) {
    const head = element("th");
    head.scope = "col";
    const button = element("button", title);
    button.addEventListener("click", () => {
      [order.down, order.column] = [order.column === column && !order.down, column];
      for (const each of $("columns").children) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      draw();
    });
    head.append(button);
    $("columns").append(head);
  }
}

function stepRow(step) {
  const made = document.createElement("tr");
  const rewards = step.rewards ? Object.entries(step.rewards).map(([key, value]) => `${key} ${value}`).join(", ") || "{}" : "-";
  const gate = step.gate === undefined ? "-" : step.gate ? "met" : "not met";
  const exception = step.exception ? `${step.exception.type}: ${step.exception.message}` : "-";
  const head = element("th", step.name);
  head.scope = "row";
  made.append(head, element("td", step.phase ?? "-"), element("td", rewards), element("td", gate, step.gate === false ? "bad" : ""));
  made.append(element("td", duration(step.seconds?.agent), "n"), element("td", duration(step.seconds?.verifier), "n"));
  made.append(element("td", exception, step.exception ? "bad" : ""));
  return made;
}

async function drawTrial() {
  if (shown === null) return;
  const { namespace, name } = shown;
  const answer = await fetch(`trials/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`);
  if (shown === null || shown.name !== name || shown.namespace !== namespace) return;
  if (!answer.ok) {
    $("trial-message").textContent = await answer.text();
    return;
  }
  const status = await answer.json();
  $("trial-message").textContent = rows.trial.get(`${namespace}/${name}`)?.message ?? "";
  $("facts").replaceChildren(...status.facts.map((line) => element("li", line)));
  $("step-rows").replaceChildren(...(status.steps ?? []).map(stepRow));
}

async function readOutput(namespace, name, signal) {
  const decoder = new TextDecoder();
  const answer = await fetch(`trials/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}/logs`, { signal });
  for (const reader = answer.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const output = $("output");
    const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 20;
    output.textContent = (output.textContent + decoder.decode(value, { stream: true })).slice(-OUTPUT_CHARACTERS);
    if (atEnd) output.scrollTop = output.scrollHeight;
  }
}

function openTrial(namespace, name) {
  shown = { namespace, name };
  $("trial-title").textContent = name;
  $("output").textContent = "";
  for (const part of ["facts", "step-rows"]) $(part).replaceChildren();
  $("trial").showModal();
  reading = new AbortController();
  readOutput(namespace, name, reading.signal).catch((error) => {
    if (error.name !== "AbortError") $("output").textContent += `\n${error.message}\n`;
  });
  drawTrial();
}

function take(found) {
  if (found.all) for (const known of Object.values(rows)) known.clear();
  for (const row of found.rows) {
    const key = `${row.namespace}/${row.name}`;
    if (row.deleted) rows[row.kind].delete(key);
    else rows[row.kind].set(key, row);
  }
  $("state").textContent = found.unavailable ? `the API server is not reachable: ${found.unavailable}` : "live";
  $("state").className = found.unavailable ? "bad" : "soft";
  if (shown !== null && found.rows.some((row) => row.kind === "trial" && row.name === shown.name && row.namespace === shown.namespace)) drawTrial();
  drawSoon();
}

function connect() {
  const source = new EventSource("changes");
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    $("state").textContent = "the dashboard has ended; start it again with `multistep dashboard`";
    $("state").className = "bad";
  });
}

heads();
for (const id of ["search", "outcome", "sweep"]) $(id).addEventListener("input", drawSoon);
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
$("close").addEventListener("click", () => $("trial").close());
$("trial").addEventListener("close", () => { shown = null; reading?.abort(); });
setInterval(drawSoon, 5000); // updates the times of running trials and sweeps
connect();
