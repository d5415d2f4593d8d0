package handlers_test

import (
	"encoding/json"
	"strings"
	"testing"

	"nsop/bench"
)

// TestLimit: a search answers a series, the knee and what bounds it, in every format; a run can be asked for again.
func TestLimit(t *testing.T) {
	s := newService(t, nil)
	const path = "/limit/map/get?benchtime=5ms&concurrency=4"
	w := get(s, path)
	var answer struct {
		Run      string
		Series   []bench.Result
		Results  []bench.Result
		Knee     *bench.Knee
		BoundBy  string `json:"bound_by"`
		Evidence map[string]any
		Warnings []string
		Target   *bench.TargetInfo
		Vantage  any
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if w.Code != 200 || len(answer.Series) < 3 || answer.Results != nil || answer.Knee == nil || answer.Knee.Row == "" || answer.BoundBy == "" ||
		answer.Evidence["summary"] == "" || answer.Target == nil || answer.Vantage == nil || answer.Warnings == nil {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if again := get(s, "/runs/"+answer.Run); again.Body.String() != w.Body.String() {
		t.Errorf("afterwards: %s", again.Body)
	}
	for _, f := range bench.Formats {
		if w := get(s, path+"&format="+f.Name); w.Code != 200 || w.Body.Len() == 0 {
			t.Errorf("%s: status %d: %s", f.Name, w.Code, w.Body)
		}
	}
	if w := serve(s, newRequest("POST", "/limit/map/get", `{"benchtime": "5ms", "concurrency": 2}`)); w.Code != 200 || strings.Count(w.Body.String(), `"sample": 1`) < 2 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	stream := get(s, path, "Accept", "text/event-stream")
	if !strings.Contains(stream.Body.String(), `"series":[`) {
		t.Errorf("stream: %s", stream.Body)
	}
	for path, status := range map[string]int{
		"/limit/map/get?benchtime=59s":                                400,
		"/limit/map/get,set?benchtime=5ms":                            400,
		"/limit/map/nope?benchtime=5ms":                               404,
		"/limit/nope/get":                                             404,
		"/limit/map/lpush?benchtime=5ms":                              422,
		"/limit/map/get?rate=5":                                       400,
		"/bench/map/get?rate=auto":                                    400,
		"/limit/map/get?concurrency=1,2":                              400,
		"/limit/map/get?benchtime=5ms&assert=p50%3C1ns&concurrency=2": 417,
	} {
		w := get(s, path)
		if w.Code != status {
			t.Errorf("%s: status %d, want %d: %s", path, w.Code, status, w.Body)
		}
		if strings.Contains(path, "59s") && !strings.Contains(w.Body.String(), `"estimated_seconds"`) {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}
