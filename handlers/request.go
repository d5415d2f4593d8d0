package handlers

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"nsop/bench"
)

// query is what the request asks for: its query string and, for a POST, a JSON object with the same names.
func query(r *http.Request, bodyLimit int) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &bench.ParamError{Detail: "query string: " + err.Error()}
	}
	if r.Body == nil {
		return values, nil
	}
	// Read to its end whatever the method is: the server notices that a client has left only after that.
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, int64(bodyLimit)))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &tooLargeError{bodyLimit}
	} else if err != nil {
		return nil, &bench.ParamError{Detail: "read body: " + err.Error()}
	}
	if len(body) > 0 && r.Method != http.MethodPost {
		return nil, &bench.ParamError{Detail: "body: " + r.Method + " takes none", Allowed: []string{"POST with a body", "the same names in the query"}}
	}
	fields, err := bodyValues(body)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if values.Has(name) {
			return nil, &bench.ParamError{Parameter: name, Detail: "given both in the query and in the body"}
		}
		values[name] = fields[name]
	}
	return values, nil
}

// checkTarget refuses a request's target (RFC 9112, 3.2) that no client could have sent: the command line takes any text.
func checkTarget(target string) error {
	switch {
	case strings.ContainsFunc(target, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return &bench.ParamError{Detail: "the path and its query hold white space or a control character: write a space as %20"}
	case target == "": // a request that no server has read
		return nil
	}
	if _, err := url.ParseRequestURI(target); err != nil {
		// err repeats the whole of it.
		if cause := errors.Unwrap(err); cause != nil {
			err = cause
		}
		return &bench.ParamError{Detail: "path: " + err.Error()}
	}
	return nil
}

// bodyValues reads a JSON object as a query: a list is a comma list, but for assert, which is repeated.
func bodyValues(body []byte) (url.Values, error) {
	values := url.Values{}
	if len(strings.TrimSpace(string(body))) == 0 {
		return values, nil
	}
	wrong := func(detail string) error {
		return &bench.ParamError{Detail: "body: " + detail, Allowed: []string{"a JSON object with the names of the query"}}
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, wrong("not a JSON object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, wrong(err.Error())
		}
		name := key.(string) // a decoder gives nothing else in this place
		if values.Has(name) {
			return nil, &bench.ParamError{Parameter: name, Detail: "given twice in the body"}
		}
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, wrong(err.Error())
		}
		items, isList := v.([]any)
		if !isList {
			items = []any{v}
		}
		var texts []string
		for _, item := range items {
			switch item := item.(type) {
			case string:
				texts = append(texts, item)
			case json.Number:
				texts = append(texts, item.String())
			case bool:
				texts = append(texts, strconv.FormatBool(item))
			default:
				return nil, &bench.ParamError{Parameter: name, Detail: "want a string, a number, true, false or a list of these"}
			}
		}
		if len(texts) == 0 {
			return nil, &bench.ParamError{Parameter: name, Detail: "an empty list"}
		}
		if name != "assert" {
			texts = []string{strings.Join(texts, ",")}
		}
		values[name] = texts
	}
	if _, err := d.Token(); err != nil {
		return nil, wrong(err.Error())
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, wrong("more than one JSON object")
	}
	return values, nil
}

// chooseFormat is the format that the request wants: by its parameter, else by Accept.
func chooseFormat(r *http.Request) (bench.Format, error) {
	values, _ := url.ParseQuery(r.URL.RawQuery) // a query that doesn't parse is refused where it is used
	return formatOf(values, r)
}

func formatOf(values url.Values, r *http.Request) (bench.Format, error) {
	if names := values["format"]; len(names) > 0 {
		f, ok := bench.FormatByName(names[0])
		if ok && len(names) == 1 {
			return f, nil
		}
		e := &bench.ParamError{Parameter: "format", Detail: "no format " + strconv.Quote(names[0])}
		if len(names) > 1 {
			e.Detail = "given twice"
		}
		for _, f := range bench.Formats {
			e.Allowed = append(e.Allowed, f.Name)
		}
		return bench.Formats[0], e
	}
	f, _ := bench.NegotiateAccept(r.Header.Get("Accept"))
	return f, nil
}

// checkNames refuses parameters that an endpoint does not take.
func checkNames(values url.Values, allowed ...string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(allowed, name) {
			if len(allowed) == 0 {
				return &bench.ParamError{Parameter: name, Detail: "no such parameter: this path takes none"}
			}
			return &bench.ParamError{Parameter: name, Detail: "no such parameter", Allowed: allowed}
		}
	}
	return nil
}

// baseURL is this service's address as the caller sees it: a platform's front end ends TLS before the request comes here.
func baseURL(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	if r.Host == "" {
		return ""
	}
	return scheme + "://" + r.Host
}

func (s *Service) encodeOptions(r *http.Request) bench.EncodeOptions {
	return bench.EncodeOptions{Terminal: s.Terminal, NoColor: s.NoColor, URL: baseURL(r)}
}
