package api

// Page is the answer to POST /v1/web.
type Page struct {
	URL string `json:"url"` // of the page, with a token that is good for one browser, once
}

// Check is the body of POST /v1/check: one of the first two.
type Check struct {
	Probe  *ProbeSpec `json:"probe,omitempty"`
	Script *RunScript `json:"script,omitempty"`

	// InAnswer: what is wrong with it is in Checked, and the request has not failed for it.
	InAnswer bool `json:"inAnswer,omitempty"`
}

// Checked is the answer: without an Error nothing is wrong.
type Checked struct {
	Probes   int      `json:"probes"` // that there would be
	Warnings []string `json:"warnings,omitempty"`
	Error    *Error   `json:"error,omitempty"`
}
