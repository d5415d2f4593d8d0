"use strict";
(() => {
const $ = id => document.getElementById(id);
// Times in the reader's zone, which the charts get from the server: it learns of it by a cookie.
for (const t of document.querySelectorAll("time")) {
  const at = new Date(t.dateTime);
  if (!isNaN(at)) {
    t.title = t.textContent;
    t.textContent = at.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"});
  }
}
const zone = "tz=" + -new Date().getTimezoneOffset(), zoned = () => document.cookie.split("; ").includes(zone);
if (!zoned()) {
  document.cookie = zone + "; Path=/; SameSite=Strict; Max-Age=31536000";
  if (zoned() && zone !== "tz=0" && document.querySelector("figure.chart")) location.reload();
}
const json = (url, options) => fetch(url, {headers: {Accept: "application/json"}, ...options});
const three = v => v >= 100 ? Math.round(v).toLocaleString("en") : Number(v.toPrecision(3)).toString();
const duration = ns => {
  if (ns === null || ns === undefined) return "-";
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) if (ns >= size) return three(ns / size) + " " + unit;
  return three(ns) + " ns";
};
const showRows = results => {
  $("rows").replaceChildren(...results.map(r => {
    const tr = document.createElement("tr");
    [r.workload, r.client, r.concurrency, r.size ?? "-", r.ops_per_sec === null ? "-" : three(r.ops_per_sec), duration(r.latency_ns.p50), duration(r.latency_ns.p99), r.errors]
      .forEach((text, i) => {
        const cell = document.createElement(i ? "td" : "th");
        if (!i) cell.scope = "row";
        if (i < 2) cell.className = "left";
        cell.textContent = text;
        tr.append(cell);
      });
    return tr;
  }));
};
const wait = ms => new Promise(done => setTimeout(done, ms));
const stopRun = id => json("/runs/" + encodeURIComponent(id), {method: "DELETE"}).catch(() => {});
// A run that someone else started: its page.
const watch = $("watch");
if (watch) {
  const id = watch.dataset.run, stop = $("stop");
  stop.hidden = false;
  stop.onclick = () => { stop.disabled = true; stopRun(id); };
  (async () => {
    for (;;) {
      await wait(700);
      try {
        const answer = await json("/runs/" + encodeURIComponent(id)), run = await answer.json();
        if (run.state !== "running") return location.replace("/runs/" + encodeURIComponent(id));
        $("bar").value = 100 * run.fraction;
        $("live-text").textContent = run.row + " of " + run.rows + " rows are done";
      } catch { await wait(3000); }
    }
  })();
}
// The form.
const form = $("bench");
if (!form) return;
const fields = () => new URLSearchParams([...new FormData(form)].filter(([, v]) => v.trim() !== ""));
let plan = null, asked = 0, timer = 0;
const describe = async () => {
  const mine = ++asked, estimate = $("estimate");
  try {
    const answer = await json("/plan?" + fields()), body = await answer.json();
    if (mine !== asked) return;
    plan = answer.ok ? body : null;
    estimate.className = answer.ok ? "" : "bad";
    estimate.textContent = answer.ok ? body.rows + " rows, about " + body.estimate : body.detail + (body.allowed ? ". Allowed: " + body.allowed.join(", ") : "");
    if (answer.ok) $("curl").textContent = body.command;
  } catch { if (mine === asked) { plan = null; estimate.textContent = "the service does not answer"; } }
};
const target = $("f-target");
const offer = () => {
  const o = target.selectedOptions[0].dataset;
  $("h-workloads").textContent = "Workloads of " + target.value + ": " + o.workloads + ".";
  $("h-client").textContent = "Clients of " + target.value + ": " + o.clients + ". A list with commas measures every combination.";
  $("f-client").placeholder = o.default;
};
target.addEventListener("change", offer);
form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(describe, 200); });
const button = form.querySelector("button[type=submit]"), stop = $("stop");
form.addEventListener("submit", async event => {
  event.preventDefault();
  clearTimeout(timer);
  await describe();
  if (!plan) return;
  const started = Date.now(), seconds = plan.estimated_seconds;
  let id = "", over = false;
  button.disabled = true;
  $("live").hidden = false;
  $("done").textContent = "";
  $("bar").value = 0;
  $("live-text").textContent = "Running";
  showRows([]);
  stop.onclick = () => { if (id) { stop.disabled = true; stopRun(id); } };
  stop.disabled = false;
  // As events, since a run that was stopped is an event too and no failed request.
  const result = fetch(plan.path, {headers: {Accept: "text/event-stream"}}).then(async answer => {
    const text = await answer.text(), event = text.split("\n\n").find(e => e.startsWith("event: result\n"));
    return JSON.parse(event ? event.slice(event.indexOf("data: ") + 6) : text);
  }).finally(() => { over = true; });
  // Polled, since a platform may hold the answer back until its end.
  (async () => {
    while (!over) {
      await wait(id ? 400 : 150);
      if (over) return;
      let run = null;
      try { const answer = await json("/runs/now"); if (answer.status === 200) run = await answer.json(); } catch { }
      if (over) return;
      // Another instance may answer: then the estimate alone tells how far it is.
      const fraction = run ? run.fraction : Math.min(.99, (Date.now() - started) / 1000 / seconds);
      $("bar").value = Math.max($("bar").value, fraction);
      if (!run || !run.run) continue;
      id = run.run;
      stop.hidden = false;
      $("live-text").textContent = run.row + " of " + run.rows + " rows are done";
      showRows(run.results);
    }
  })();
  try {
    const body = await result, failed = body.status >= 400, broken = (body.assertions || []).some(a => !a.ok);
    showRows(body.results || []);
    const done = $("done");
    done.className = failed || broken ? "bad" : "";
    done.textContent = failed ? body.title + ": " + body.detail + " " : broken ? "Done, but an assertion does not hold. " : "Done. ";
    if (body.run) {
      const a = document.createElement("a");
      a.href = "/runs/" + encodeURIComponent(body.run);
      a.textContent = "Run " + body.run.slice(0, 8);
      done.append(a);
    }
    $("live-text").textContent = (body.results || []).length + " rows";
    if (!failed) $("bar").value = 1;
  } catch { $("done").textContent = "The service did not answer."; }
  stop.hidden = true;
  button.disabled = false;
});
})();
