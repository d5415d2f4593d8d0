package bench

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseAssert(t *testing.T) {
	for _, tt := range []struct {
		expr, metric, op string
		value            float64
	}{
		{"p99<3ms", "p99", "<", 3e6},
		{"p99.9<=20ms", "p99.9", "<=", 20e6},
		{"p99_9<=20ms", "p99.9", "<=", 20e6},
		{"ns_per_op<=1.5ms", "ns_per_op", "<=", 1.5e6},
		{"errors=0", "errors", "=", 0},
		{"errors==0", "errors", "=", 0},
		{"ops_per_sec>20000", "ops_per_sec", ">", 20000},
		{" p50 >= 1.1 us ", "p50", ">=", 1100},
		{"p50<57.1\u00b5s", "p50", "<", 57100},
		{"p50<57.1\u03bcs", "p50", "<", 57100},
		{"max<2s", "max", "<", 2e9},
		{"max<2000", "max", "<", 2000},
		{"max<.5ns", "max", "<", .5},
		{"server_ns_per_call<10us", "server_ns_per_call", "<", 10000},
	} {
		got, err := ParseAssert(tt.expr)
		if want := (Assert{tt.expr, tt.metric, tt.op, tt.value}); err != nil || got != want {
			t.Errorf("ParseAssert(%q) = %+v, %v, want %+v", tt.expr, got, err, want)
		}
	}
	for expr, want := range map[string]string{
		"":                             "METRIC OP VALUE",
		"p99":                          "METRIC OP VALUE",
		"p98<3ms":                      "allowed: ns_per_op, ops_per_sec",
		"<3ms":                         "allowed",
		"errors!=0":                    "no metric \"errors!\"",
		"p99<":                         "\"\" is not a value of p99",
		"p99<ms":                       "\"ms\" is not a value",
		"p99<-3ms":                     "not negative",
		"p99<NaN":                      "in ns, us, ms or s",
		"p99<Infs":                     "is not a value",
		"p99<3m":                       "in ns, us, ms or s",
		"p99<1e3ms":                    "is not a value",
		"p99<0x10":                     "is not a value",
		"p99<1_000":                    "is not a value",
		"p99<1.2.3ms":                  "is not a value",
		"p99=>3ms":                     "\">3ms\" is not a value",
		"errors<3ms":                   "want a number",
		"errors<-1":                    "want a number",
		"ops_per_sec>20k":              "want a number",
		"p99<\n3\x1bms":                "is not a value",
		"p99<" + longDigits:            "is not a value",
		strings.Repeat("x", 500) + "<": "no metric",
	} {
		_, err := ParseAssert(expr)
		if err == nil || !strings.Contains(err.Error(), want) || strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 500 {
			t.Errorf("ParseAssert(%q): %v, want %q", expr, err, want)
		}
	}
}

var longDigits = strings.Repeat("9", 400)

func TestCheck(t *testing.T) {
	row := func(p99 int64, ops float64) *Result {
		return &Result{Name: "Get", OpsPerSec: NewRate(ops), Latency: Latency{P99: &p99}}
	}
	for _, tt := range []struct {
		expr   string
		r      *Result
		actual string
		ok     bool
	}{
		{"p99<3ms", row(1410234, 1), "1.41ms", true},
		{"p99 < 3ms", row(3_500_000, 1), "3.50ms", false},
		{"p99<=3ms", row(3_000_900, 1), "3.001ms", false},
		{"p99<=3ms", row(3_000_001, 1), "3.000001ms", false},
		{"p99<3ms", row(2_999_999, 1), "2.999999ms", true},
		{"p99<1.41ms", row(1_410_000, 1), "1.41ms", false},
		{"p99=1.41ms", row(1_410_234, 1), "1.4102ms", false},
		{"p99=1410000", row(1_410_000, 1), "1.41ms", true},
		{"p99<1us", row(412, 1), "412ns", true},
		{"p99<3ms", &Result{Name: "Get"}, "null", false},
		{"p99>0", &Result{Name: "Get"}, "null", false},
		{"ops_per_sec>20000", row(1, 20112.4), "20112.4", true},
		{"ops_per_sec>=20000", row(1, 19999.6), "19999.6", false},
		{"ops_per_sec>923", row(1, 923.5), "923.5", true},
		{"errors=0", &Result{Name: "Get", Errors: 1234567}, "1234567", false},
	} {
		a, err := ParseAssert(tt.expr)
		if err != nil {
			t.Fatal(err)
		}
		got, want := a.Check([]*Result{tt.r, tt.r}), Assertion{tt.expr, tt.actual, "Get", tt.ok}
		if !reflect.DeepEqual(got, []Assertion{want, want}) {
			t.Errorf("%s: got %+v, want %+v twice", tt.expr, got, want)
		}
		if AssertionsHold(got) != tt.ok {
			t.Errorf("%s: AssertionsHold is %v", tt.expr, !tt.ok)
		}
	}
	if !AssertionsHold(nil) {
		t.Error("no assertion does not hold")
	}
	if got := (Assert{}).Check([]*Result{row(1, 1)}); got[0].OK || got[0].Actual != "null" {
		t.Errorf("the zero Assert gives %+v", got)
	}
}

func FuzzParseAssert(f *testing.F) {
	for _, s := range []string{"p99<3ms", "p99.9 <= 20 ms", "errors==0", "ops_per_sec>20000", "p50<57.1\u00b5s", "max<.5ns", "p99<1..s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		a, err := ParseAssert(expr)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Errorf("more than a line: %q", err)
			}
			return
		}
		b, err := ParseAssert(a.String())
		if err != nil {
			t.Fatalf("%q is written %q: %v", expr, a.String(), err)
		}
		if a.Expr, b.Expr = "", ""; a != b {
			t.Errorf("%q: %+v, read back %+v", expr, a, b)
		}
	})
}
