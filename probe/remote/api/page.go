package api

// Page is the answer to POST /v1/web.
type Page struct {
	URL string `json:"url"` // of the page, with a token that is good for one browser, once
}

// Check is the body of POST /v1/check: exactly one of Probe and Script.
type Check struct {
	Probe  *ProbeSpec `json:"probe,omitempty"`
	Script *RunScript `json:"script,omitempty"`

	// Places answers with the script's probes as Checked.Places.
	Places bool `json:"places,omitempty"`

	// InAnswer reports an error in the probe or in the script as Checked.Error, with status 200. Errors of the request
	// itself and of the daemon still fail the request.
	InAnswer bool `json:"inAnswer,omitempty"`
}

// Checked is the answer to POST /v1/check: without an Error the probe or the script is valid.
type Checked struct {
	Probes   int      `json:"probes"` // the number of probes that would be attached
	Warnings []string `json:"warnings,omitempty"`
	Places   []Place  `json:"places,omitempty"` // of a script, if Check.Places is set: each place once, in the order of the script
	Error    *Error   `json:"error,omitempty"`
}
