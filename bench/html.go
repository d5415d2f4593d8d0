package bench

// A Page is what people see of a report, for those who write it as HTML. Its texts are not escaped.
type Page struct {
	Head       []Heading // what was measured, from where, and what is the same in all rows
	Warnings   []string  // above the table
	Table      Table
	Summary    Table    // medians of several samples, without rows where there is one sample of each
	Notes      []string // below it
	Assertions []CheckedAssertion
}

// A Heading is a target's name, which may be "", and what is known of it.
type Heading struct {
	Name    string
	Phrases []string
}

// A CheckedAssertion is one expression and what it came to in one row.
type CheckedAssertion struct {
	OK                bool
	Expr, Actual, Row string
}

// Page returns what people see of r.
func (r *Report) Page() Page {
	p := newPage(r, EncodeOptions{})
	out := Page{Warnings: p.warnings, Table: p.table, Summary: p.summary, Notes: p.notes}
	for _, h := range p.head {
		out.Head = append(out.Head, Heading{h.name, h.phrases})
	}
	for _, a := range p.assertions {
		out.Assertions = append(out.Assertions, CheckedAssertion{a.ok, a.expr, a.actual, a.row})
	}
	return out
}
