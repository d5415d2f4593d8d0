package handlers

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"nsop/bench"
	"nsop/bench/compare"
)

// object is a JSON object of the description.
type object = map[string]any

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

// openapi describes what is served, made from the table of routes and the table of parameters.
func (s *Service) openapi(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.only(r); err != nil {
		return err
	}
	described := object{}
	for _, rt := range routes() {
		item, ok := described[rt.path].(object)
		if !ok {
			item = object{}
			described[rt.path] = item
		}
		for _, m := range rt.methods {
			item[strings.ToLower(m)] = s.operation(rt, m)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	return writeJSON(w, object{
		"openapi": "3.1.0",
		"info": object{"title": "nsop", "version": s.Version,
			"description": "What one operation on a data store costs, from inside this runtime, over this network path, through this client library."},
		"paths": described,
		"components": object{
			"schemas": schemas(),
			"securitySchemes": object{
				"bearer": object{"type": "http", "scheme": "bearer"},
				"basic":  object{"type": "http", "scheme": "basic"},
			},
		},
	})
}

func (s *Service) operation(rt route, method string) object {
	var parameters []any
	for _, m := range pathParameter.FindAllStringSubmatch(rt.path, -1) {
		p := object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}}
		if m[1] == "target" {
			var names []string
			for _, t := range s.Targets {
				names = append(names, t.Name)
			}
			p["schema"] = object{"type": "string", "enum": names}
		}
		parameters = append(parameters, p)
	}
	asQuery := func(name, doc string, schema object) {
		parameters = append(parameters, object{"name": name, "in": "query", "description": doc, "schema": schema})
	}
	for _, name := range rt.query {
		if i := slices.IndexFunc(runParameters, func(p runParameter) bool { return p.name == name }); rt.path == "/runs" && i >= 0 {
			asQuery(name, runParameters[i].doc, object{"type": "string"})
			continue
		}
		if rt.path == "/compare" && name != "format" {
			asQuery(name, "one side: "+strings.Join(allowedSides(s.Compare.PublishedNames), ", "), object{"type": "string"})
			continue
		}
		if doc, ok := queryDocs[name]; ok {
			asQuery(name, doc, object{"type": "string"})
			continue
		}
		var names []string
		for _, f := range bench.Formats {
			if rt.answers != "" && !isDiagnoseFormat(f.Name) {
				continue
			}
			names = append(names, f.Name)
		}
		if rt.path == "/compare" {
			names = nil
			for _, f := range s.compareFormats() {
				names = append(names, f.Name)
			}
		}
		asQuery(name, "format of the answer; Accept chooses too", object{"type": "string", "enum": names})
	}
	if rt.spec {
		for _, p := range bench.Parameters {
			if rt.only != nil && !slices.Contains(rt.only, p.Name) {
				continue
			}
			schema := object{"type": "string", "examples": []string{p.Example}}
			if p.Name == "assert" {
				schema = object{"type": "array", "items": schema}
			}
			asQuery(p.Name, p.Doc, schema)
		}
		asQuery("label.NAME", "a label called NAME, stored with the results", object{"type": "string"})
	}
	op := object{"summary": rt.doc, "responses": responses(rt)}
	if parameters != nil {
		op["parameters"] = parameters
	}
	if (rt.spec || rt.answers != "") && method == http.MethodPost {
		op["requestBody"] = object{"content": object{"application/json": object{"schema": body(rt)}}}
	}
	if !rt.open {
		op["security"] = []any{object{}, object{"bearer": []string{}}, object{"basic": []string{}}}
	}
	return op
}

// queryDocs are the parameters of single endpoints.
var queryDocs = map[string]string{
	"client":     "client libraries, a comma list; the budget is the first's",
	"timeout":    "bound on one stage and one operation",
	"idle":       "how long to hold connections, a comma list of durations",
	"background": "true: measure what work after this response gets of the CPU, and tell what it got after the one before",
}

// body is a JSON object with the names of the query.
func body(rt route) object {
	scalars := []string{"string", "number", "boolean"}
	value := object{"type": append([]string{"array"}, scalars...), "items": object{"type": scalars}}
	properties := object{}
	for _, name := range rt.query {
		properties[name] = value
	}
	if !rt.spec {
		return object{"type": "object", "properties": properties, "additionalProperties": false}
	}
	for _, p := range bench.Parameters {
		if rt.only == nil || slices.Contains(rt.only, p.Name) {
			properties[p.Name] = value
		}
	}
	return object{"type": "object", "properties": properties, "patternProperties": object{`^label\.`: value}, "additionalProperties": false}
}

// responses are the statuses that a route can answer with.
func responses(rt route) object {
	plain := "application/json"
	if rt.path == "/" || rt.path == "/metrics" {
		plain = "text/plain"
	}
	answers := object{"200": object{"description": "the answer", "content": object{plain: object{}}}}
	problem := func(statuses ...string) {
		for _, status := range statuses {
			answers[status] = object{"description": "a problem, RFC 9457", "content": object{"application/problem+json": object{"schema": ref("Problem")}}}
		}
	}
	if !rt.open {
		problem("400", "401", "403")
	}
	if strings.Contains(rt.path, "{") {
		problem("404")
	}
	if strings.HasPrefix(rt.path, "/ready") {
		problem("503")
	}
	if rt.path == "/runs" {
		problem("413", "503")
		answers["200"] = object{"description": "runs with the key figures of their rows", "content": object{plain: object{"schema": object{
			"type": "object", "properties": object{"runs": object{"type": "array", "items": object{"type": "object"}}}}}}}
		return answers
	}
	if rt.path == "/runs/{id}" || rt.path == "/metrics" {
		problem("503") // the history is down
	}
	if slices.Contains(rt.query, "format") {
		reports := object{}
		for _, f := range bench.Formats {
			if rt.answers != "" && !isDiagnoseFormat(f.Name) {
				continue
			}
			media, _, _ := strings.Cut(f.ContentType, ";")
			reports[media] = object{"schema": object{"type": "string"}}
		}
		reports["application/json"] = object{"schema": ref(cmp.Or(rt.answers, "Report"))}
		if strings.HasPrefix(rt.path, "/limit/") {
			reports["application/json"] = object{"schema": ref("Limit")}
		}
		answers["200"] = object{"description": "what was measured", "content": reports}
		if rt.spec {
			answers["417"] = object{"description": "what was measured; an assertion failed", "content": reports}
		}
	}
	if rt.path == "/compare" {
		comparison := object{}
		for _, f := range compare.Formats {
			media, _, _ := strings.Cut(f.ContentType, ";")
			comparison[media] = object{"schema": object{"type": "string"}}
		}
		comparison["application/json"] = object{"schema": ref("Comparison")}
		answers["200"] = object{"description": "the comparison", "content": comparison}
		problem("404")
	}
	if rt.answers != "" {
		problem("413", "429", "503")
	}
	if rt.spec {
		answers["200"].(object)["content"].(object)["text/event-stream"] = object{"schema": object{"type": "string",
			"description": "events started, progress and result, each with a JSON object; where Accept asks for it"}}
		answers["429"] = object{"description": "a benchmark is running on this instance",
			"headers": object{"Retry-After": object{"description": "seconds", "schema": object{"type": "integer"}}},
			"content": object{"application/problem+json": object{"schema": ref("Problem")}}}
		problem("413", "422", "502", "503", "504")
		if rt.only != nil {
			problem("409") // another plan under one idempotency key
		}
	}
	return answers
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemas describe the report and the problem.
func schemas() object {
	var (
		integer, text, yes = object{"type": "integer"}, object{"type": "string"}, object{"type": "boolean"}
		number             = object{"type": []string{"number", "null"}}
		list               = func(of any) object { return object{"type": "array", "items": of} }
		mapOf              = func(of any) object { return object{"type": "object", "additionalProperties": of} }
		fields             = func(properties object) object { return object{"type": "object", "properties": properties} }
	)
	return object{
		"Result": fields(object{
			"name": text, "target": text, "embedded": yes, "workload": text, "client": text, "client_version": text,
			"concurrency": integer, "pipeline": integer, "size": integer, "keyspace": integer, "flavor": text, "sync": text,
			"scale": integer, "protocol": text, "ops_per_sec_with_connect": number, "histogram": text, "sample": integer, "iterations": integer,
			"elapsed_ns": integer, "ns_per_op": number, "ops_per_sec": number, "latency_ns": mapOf(number), "errors": integer,
			"error_kinds": mapOf(integer), "error_samples": mapOf(text), "misses": integer, "mismatches": integer, "moved": integer,
			"rate": object{"type": "number"}, "shape": text, "service_ns": mapOf(number), "late": integer, "longest_stall_ns": number,
			"connections": integer, "connect_ns": number, "bytes_per_op": number, "allocs_per_op": number,
			"client_cpu_percent": number, "throttled_ns": number,
			"server":   object{"type": []string{"object", "null"}, "properties": object{"ns_per_call": number, "cpu_percent": number}},
			"settings": object{"type": "object"}, "labels": mapOf(text), "warnings": list(text),
		}),
		"Target": fields(object{"name": text, "kind": text, "address": text, "server": text, "mode": text, "tls": yes, "embedded": yes}),
		"Report": fields(object{
			"run": text, "suite": text, "imported": text, "started_at": object{"type": "string", "format": "date-time"}, "elapsed_ns": integer,
			"vantage": object{"type": []string{"object", "null"}}, "target": ref("Target"), "targets": list(ref("Target")),
			"results":    list(ref("Result")),
			"summaries":  list(ref("Summary")),
			"phases_ns":  mapOf(number),
			"classes":    object{"type": "object"},
			"unmeasured": mapOf(text),
			"change":     text,
			"changes":    list(fields(object{"row": text, "at": text, "revision": text, "ratio": number, "p": number, "sentence": text})),
			"assertions": list(fields(object{"expr": text, "actual": text, "row": text, "ok": yes})),
			"warnings":   list(text),
		}),
		"Summary": fields(object{"name": text, "samples": integer, "warnings": list(text), "metrics": mapOf(fields(object{
			"median": number, "low": number, "high": number, "confidence": number}))}),
		// A report whose results are a series.
		"Limit": fields(object{
			"run": text, "started_at": object{"type": "string", "format": "date-time"}, "elapsed_ns": integer,
			"vantage": object{"type": []string{"object", "null"}}, "target": ref("Target"),
			"series":     list(ref("Result")),
			"knee":       object{"type": []string{"object", "null"}, "properties": object{"row": text, "concurrency": integer, "rate": number, "ops_per_sec": number}},
			"bound_by":   object{"type": "string", "enum": bench.Resources},
			"evidence":   object{"type": "object"},
			"assertions": list(fields(object{"expr": text, "actual": text, "row": text, "ok": yes})),
			"warnings":   list(text),
		}),
		"Comparison": fields(object{
			"a": ref("Side"), "b": ref("Side"), "verdict": text, "outcome": text, "only_a": list(text), "only_b": list(text), "warnings": list(text),
			"rows": list(fields(object{"name": text, "name_b": text, "notes": list(text), "metrics": list(fields(object{
				"metric": text, "better": text, "a": ref("Sample"), "b": ref("Sample"), "ratio": number, "ratio_lo": number, "ratio_hi": number,
				"p": number, "effect": text, "note": text}))})),
		}),
		"Side":   fields(object{"description": text, "runs": list(text), "reports": integer, "samples": integer}),
		"Sample": fields(object{"median": number, "n": integer}),
		"Diagnosis": fields(object{
			"started_at": object{"type": "string", "format": "date-time"}, "elapsed_ns": integer, "target": ref("Target"),
			"findings": list(fields(object{"rule": text, "severity": object{"type": "string", "enum": []string{"info", "warning", "error"}},
				"summary": text, "evidence": object{"type": "object"}, "cause": text, "next": text})),
			"budget": object{"type": []string{"object", "null"}, "properties": object{"operation": text, "client": text, "total_ns": integer,
				"parts": list(fields(object{"name": text, "ns": number})), "server_source": text}},
			"vantage": object{"type": []string{"object", "null"}}, "path": object{"type": []string{"object", "null"}},
			"server": object{"type": []string{"object", "null"}}, "client": object{"type": []string{"object", "null"}},
			"classes": object{"type": "object"}, "idle": list(object{"type": "object"}), "unmeasured": mapOf(text),
		}),
		"Problem": object{"type": "object", "required": []string{"type", "title", "status", "detail", "results"}, "properties": object{
			"type": text, "title": text, "status": integer, "detail": text, "parameter": text, "allowed": list(text),
			"error_kind": object{"type": "string", "enum": bench.Kinds}, "estimated_seconds": object{"type": "number"},
			"results": list(ref("Result")),
		}},
	}
}
