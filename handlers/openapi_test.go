package handlers_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
)

type object = map[string]any

func describe(t *testing.T) (doc object, routes []string) {
	t.Helper()
	s := newService(t, nil)
	if err := json.Unmarshal(get(s, "/openapi.json").Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	err := chi.Walk(s.Handler.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routes = append(routes, strings.ToLower(method)+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return doc, routes
}

// TestOpenAPIRoutes: what is described is served, and the reverse.
func TestOpenAPIRoutes(t *testing.T) {
	doc, routes := describe(t)
	var described []string
	for path, item := range doc["paths"].(object) {
		for method := range item.(object) {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(described)
	slices.Sort(routes)
	if !slices.Equal(described, routes) {
		t.Errorf("described %q\nserved    %q", described, routes)
	}
	// What the contract has so far.
	for _, route := range []string{"get /", "get /targets", "get /bench/{target}", "post /bench/{target}", "get /bench/{target}/{workloads}",
		"post /bench/{target}/{workloads}", "get /compare", "get /runs/{id}", "delete /runs/{id}", "get /health", "get /healthz", "get /ready", "get /readyz",
		"get /_ah/warmup", "get /openapi.json"} {
		if !slices.Contains(routes, route) {
			t.Errorf("%s is not served", route)
		}
	}
}

// TestOpenAPIStructure checks what OpenAPI 3.1 demands of each object that occurs here.
func TestOpenAPIStructure(t *testing.T) {
	doc, _ := describe(t)
	need := func(where string, o object, keys ...string) {
		for _, key := range keys {
			if o[key] == nil || o[key] == "" {
				t.Errorf("%s has no %s", where, key)
			}
		}
	}
	only := func(where string, o object, keys ...string) {
		for key := range o {
			if !slices.Contains(keys, key) {
				t.Errorf("%s has %s", where, key)
			}
		}
	}
	need("document", doc, "openapi", "info", "paths", "components")
	only("document", doc, "openapi", "info", "paths", "components")
	if !regexp.MustCompile(`^3\.1\.\d+$`).MatchString(doc["openapi"].(string)) {
		t.Errorf("openapi %v", doc["openapi"])
	}
	need("info", doc["info"].(object), "title", "version")
	components := doc["components"].(object)
	only("components", components, "schemas", "securitySchemes")
	schemes := components["securitySchemes"].(object)
	for name, scheme := range schemes {
		need(name, scheme.(object), "type", "scheme")
	}

	// Every $ref resolves, every schema says a type that there is.
	types := []any{"object", "array", "string", "number", "integer", "boolean", "null"}
	var schema func(where string, v any)
	schema = func(where string, v any) {
		s, ok := v.(object)
		if !ok {
			t.Errorf("%s is no schema: %v", where, v)
			return
		}
		if ref, ok := s["$ref"].(string); ok {
			var at any = doc
			for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
				at, _ = at.(object)[part]
			}
			if !strings.HasPrefix(ref, "#/") || at == nil {
				t.Errorf("%s: %s does not resolve", where, ref)
			}
			return
		}
		only(where, s, "type", "properties", "patternProperties", "additionalProperties", "items", "enum", "examples", "format", "description", "required")
		kinds, ok := s["type"].([]any)
		if !ok {
			kinds = []any{s["type"]}
		}
		for _, kind := range kinds {
			if !slices.Contains(types, kind) {
				t.Errorf("%s: type %v", where, kind)
			}
		}
		if slices.Contains(kinds, "array") {
			schema(where+".items", s["items"])
		}
		for _, key := range []string{"properties", "patternProperties"} {
			properties, _ := s[key].(object)
			for name, p := range properties {
				schema(where+"."+name, p)
			}
		}
		if more, ok := s["additionalProperties"]; ok && more != false {
			schema(where+".*", more)
		}
		required, _ := s["required"].([]any)
		for _, name := range required {
			if s["properties"].(object)[name.(string)] == nil {
				t.Errorf("%s: required %v is no property", where, name)
			}
		}
	}
	for name, s := range components["schemas"].(object) {
		schema(name, s)
	}
	content := func(where string, v any) {
		media, ok := v.(object)
		if !ok || len(media) == 0 {
			t.Errorf("%s has no content", where)
		}
		for name, m := range media {
			if !regexp.MustCompile(`^[a-z]+/[a-z.+-]+$`).MatchString(name) {
				t.Errorf("%s: media type %q", where, name)
			}
			if s, ok := m.(object)["schema"]; ok {
				schema(where+" "+name, s)
			}
		}
	}
	inPath := regexp.MustCompile(`\{(\w+)\}`)
	for path, item := range doc["paths"].(object) {
		if !strings.HasPrefix(path, "/") {
			t.Errorf("path %q", path)
		}
		for method, v := range item.(object) {
			op, where := v.(object), method+" "+path
			need(where, op, "summary", "responses")
			only(where, op, "summary", "responses", "parameters", "requestBody", "security")
			var fromPath []string
			seen := map[string]bool{}
			parameters, _ := op["parameters"].([]any)
			for _, v := range parameters {
				p := v.(object)
				need(where, p, "name", "in", "schema")
				schema(where, p["schema"])
				name, in := p["name"].(string), p["in"].(string)
				if seen[in+" "+name] {
					t.Errorf("%s: %s twice", where, name)
				}
				seen[in+" "+name] = true
				switch in {
				case "path":
					if fromPath = append(fromPath, name); p["required"] != true {
						t.Errorf("%s: %s is in the path and not required", where, name)
					}
				case "query":
				default:
					t.Errorf("%s: %s is in %s", where, name, in)
				}
			}
			var wanted []string
			for _, m := range inPath.FindAllStringSubmatch(path, -1) {
				wanted = append(wanted, m[1])
			}
			if !slices.Equal(wanted, fromPath) {
				t.Errorf("%s: path parameters %q, want %q", where, fromPath, wanted)
			}
			if body, ok := op["requestBody"].(object); ok {
				content(where, body["content"])
			}
			responses := op["responses"].(object)
			need(where, responses, "200")
			for status, r := range responses {
				if !regexp.MustCompile(`^[2-5]\d\d$`).MatchString(status) {
					t.Errorf("%s: status %q", where, status)
				}
				need(where+" "+status, r.(object), "description")
				content(where+" "+status, r.(object)["content"])
			}
			security, _ := op["security"].([]any)
			for _, one := range security {
				for name := range one.(object) {
					if schemes[name] == nil {
						t.Errorf("%s: no security scheme %s", where, name)
					}
				}
			}
			open := strings.HasPrefix(path, "/health") || strings.HasPrefix(path, "/ready") || strings.HasPrefix(path, "/_ah/")
			if (security == nil) != open {
				t.Errorf("%s: security %v", where, security)
			}
		}
	}
}

// TestOpenAPIDescribesAnswers: every field of a real answer is a property of its schema, every parameter is described.
func TestOpenAPIDescribesAnswers(t *testing.T) {
	doc, _ := describe(t)
	schemas := doc["components"].(object)["schemas"].(object)
	properties := func(name string) []string {
		return slices.Collect(maps.Keys(schemas[name].(object)["properties"].(object)))
	}
	var report object
	if err := json.Unmarshal(get(newService(t, nil), "/bench/map/get?benchtime=5x&label.a=b").Body.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		schema string
		of     object
	}{
		{"Report", report}, {"Result", report["results"].([]any)[0].(object)}, {"Target", report["target"].(object)},
	} {
		for name := range test.of {
			if !slices.Contains(properties(test.schema), name) {
				t.Errorf("%s.%s is not described", test.schema, name)
			}
		}
	}
	run := doc["paths"].(object)["/bench/{target}"].(object)["get"].(object)
	var described []string
	for _, p := range run["parameters"].([]any) {
		if p := p.(object); p["in"] == "query" {
			described = append(described, p["name"].(string))
		}
	}
	slices.Sort(described)
	want := strings.Split(names, "|") // as an answer to an unknown parameter lists them
	slices.Sort(want)
	if !slices.Equal(described, want) {
		t.Errorf("described %q, want %q", described, want)
	}
}
