package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// An Assert is a parsed assertion on one metric.
type Assert struct {
	Expr   string  // the text as given
	Metric string  // the name of one of Units
	Op     string  // "<", "<=", ">", ">=" or "="
	Value  float64 // nanoseconds where the metric is a duration
}

// ParseAssert parses METRIC OP VALUE: "p99<3ms", "ops_per_sec >= 20000". A duration is in ns, us, ms or s, and in
// nanoseconds without a unit; everything else is a plain number. The error is one line that says what is wrong.
func ParseAssert(expr string) (Assert, error) {
	fail := func(format string, args ...any) (Assert, error) {
		return Assert{}, fmt.Errorf("assert %s: %s", quoteShort(expr), fmt.Sprintf(format, args...))
	}
	i := strings.IndexAny(expr, "<>=")
	if i < 0 {
		return fail("want METRIC OP VALUE, e.g. p99<3ms, where OP is one of < <= > >= =")
	}
	name, rest := strings.TrimSpace(expr[:i]), expr[i:]
	a := Assert{Expr: expr}
	for _, op := range []string{"<=", ">=", "==", "<", ">", "="} { // the longer first
		if strings.HasPrefix(rest, op) {
			a.Op, rest = op, strings.TrimSpace(rest[len(op):])
			break
		}
	}
	if a.Op == "==" {
		a.Op = "="
	}
	u, ok := UnitByName(name)
	if !ok {
		return fail("no metric %s; allowed: %s", quoteShort(name), unitNames())
	}
	a.Metric = u.Name

	number := rest
	exp := 0
	if u.Kind == DurationUnit {
		number, exp = cutTimeUnit(rest)
	}
	want := "a number that is not negative"
	if u.Kind == DurationUnit {
		want = "a duration that is not negative, in ns, us, ms or s"
	}
	// ParseFloat takes more than a person means by a number: inf, nan, hexadecimal, underscores.
	if number == "" || strings.Trim(number, "0123456789.") != "" {
		return fail("%s is not a value of %s: want %s", quoteShort(rest), u.Name, want)
	}
	// The exponent is part of the text so that 1.41ms is exactly 1410000 ns: a product would be rounded twice.
	v, err := strconv.ParseFloat(number+"e"+strconv.Itoa(exp), 64)
	if err != nil || !finite(v) {
		return fail("%s is not a value of %s: want %s", quoteShort(rest), u.Name, want)
	}
	a.Value = v
	return a, nil
}

// cutTimeUnit splits "1.5 ms" into its number and the power of ten that makes it nanoseconds.
func cutTimeUnit(s string) (number string, exp int) {
	s = strings.NewReplacer("\u00b5", "u", "\u03bc", "u").Replace(s) // the micro sign and the Greek letter
	for _, t := range []int{0, 1, 2, 3} {                            // "s" last: the others end with it
		if number, ok := strings.CutSuffix(s, timeUnits[t].name); ok {
			return strings.TrimSpace(number), timeUnits[t].exp
		}
	}
	return s, 0
}

func quoteShort(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "..."
	}
	return strconv.QuoteToASCII(s)
}

func unitNames() string {
	names := make([]string, len(Units))
	for i, u := range Units {
		names[i] = u.Name
	}
	return strings.Join(names, ", ")
}

// String returns a in its shortest exact form, which parses to the same metric, operator and value.
func (a Assert) String() string {
	s := a.Metric + a.Op + strconv.FormatFloat(a.Value, 'f', -1, 64)
	if u, _ := UnitByName(a.Metric); u.Kind == DurationUnit {
		s += "ns"
	}
	return s
}

// Check returns one assertion for each of results, which are samples of rows. A value that was not measured fails.
func (a Assert) Check(results []*Result) []Assertion {
	u, known := UnitByName(a.Metric)
	as := make([]Assertion, 0, len(results))
	for _, r := range results {
		x := Assertion{Expr: a.Expr, Actual: "null", Row: r.Name}
		if known {
			if v, ok := u.Of(r); ok {
				x.OK = a.holds(v)
				x.Actual = a.actual(u, v)
			}
		}
		as = append(as, x)
	}
	return as
}

// AssertionsHold reports whether every assertion held.
func AssertionsHold(as []Assertion) bool {
	for _, a := range as {
		if !a.OK {
			return false
		}
	}
	return true
}

func (a Assert) holds(v float64) bool {
	switch a.Op {
	case "<":
		return v < a.Value
	case "<=":
		return v <= a.Value
	case ">":
		return v > a.Value
	case ">=":
		return v >= a.Value
	case "=":
		return v == a.Value
	}
	return false
}

// actual writes v with as many digits as it takes for the text to end the way v does: 3.001 ms is not "3.00ms" where
// p99<=3ms fails.
func (a Assert) actual(u Unit, v float64) string {
	if u.Kind != DurationUnit {
		s := Figure(v).String()
		if read, err := strconv.ParseFloat(s, 64); err == nil && a.holds(read) == a.holds(v) {
			return s
		}
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	for digits := 3; digits <= 17; digits++ {
		number, unit := duration(v, digits)
		_, exp := cutTimeUnit(unit)
		if read, err := strconv.ParseFloat(number+"e"+strconv.Itoa(exp), 64); err == nil && a.holds(read) == a.holds(v) {
			return number + unit
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + "ns"
}
