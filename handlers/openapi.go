package handlers

import (
	"net/http"
	"regexp"
	"strings"

	"nsop/bench"
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
		"info": object{"title": "nsop", "version": s.Version, "license": object{"name": "see the repository"},
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
		var names []string
		for _, f := range bench.Formats {
			names = append(names, f.Name)
		}
		asQuery(name, "format of the answer; Accept chooses too", object{"type": "string", "enum": names})
	}
	properties := object{}
	if rt.spec {
		for _, p := range bench.Parameters {
			schema := object{"type": "string", "examples": []string{p.Example}}
			if p.Name == "assert" {
				schema = object{"type": "array", "items": schema}
			}
			properties[p.Name] = schema
			asQuery(p.Name, p.Doc, schema)
		}
	}
	op := object{"summary": rt.doc, "responses": responses(rt)}
	if parameters != nil {
		op["parameters"] = parameters
	}
	if rt.spec && method == http.MethodPost {
		op["requestBody"] = object{"content": object{"application/json": object{"schema": object{"type": "object", "properties": properties}}}}
	}
	if !rt.open {
		op["security"] = []any{object{}, object{"bearer": []string{}}, object{"basic": []string{}}}
	}
	return op
}

// responses are the statuses that a route can answer with.
func responses(rt route) object {
	answers := object{"200": object{"description": "the answer"}}
	problem := func(statuses ...string) {
		for _, status := range statuses {
			answers[status] = object{"description": "a problem, RFC 9457", "content": object{"application/problem+json": object{"schema": object{"$ref": "#/components/schemas/Problem"}}}}
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
	if rt.spec {
		report := object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Report"}}}
		answers["200"] = object{"description": "what was measured", "content": report}
		answers["417"] = object{"description": "what was measured; an assertion failed", "content": report}
		problem("413", "422", "429", "502", "503", "504")
	}
	return answers
}

// schemas describe the report and the problem as far as scripts read them.
func schemas() object {
	integer, number, text := object{"type": "integer"}, object{"type": []string{"number", "null"}}, object{"type": "string"}
	list := func(of any) object { return object{"type": "array", "items": of} }
	result := object{"type": "object", "properties": object{
		"name": text, "target": text, "workload": text, "client": text, "concurrency": integer, "pipeline": integer,
		"size": integer, "keyspace": integer, "sample": integer, "iterations": integer, "elapsed_ns": integer,
		"ns_per_op": number, "ops_per_sec": number, "latency_ns": object{"type": "object", "additionalProperties": number},
		"errors": integer, "error_kinds": object{"type": "object", "additionalProperties": integer}, "misses": integer,
		"mismatches": integer, "connections": integer, "connect_ns": number, "warnings": list(text),
	}}
	return object{
		"Result": result,
		"Report": object{"type": "object", "properties": object{
			"run": text, "started_at": object{"type": "string", "format": "date-time"}, "elapsed_ns": integer,
			"vantage": object{"type": "object"}, "target": object{"type": "object"},
			"results": list(object{"$ref": "#/components/schemas/Result"}), "assertions": list(object{"type": "object"}), "warnings": list(text),
		}},
		"Problem": object{"type": "object", "properties": object{
			"type": text, "title": text, "status": integer, "detail": text, "parameter": text, "allowed": list(text),
			"error_kind": object{"type": "string", "enum": bench.Kinds}, "estimated_seconds": object{"type": "number"},
			"results": list(object{"$ref": "#/components/schemas/Result"}),
		}},
	}
}
