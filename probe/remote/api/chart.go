package api

// ChartList is the answer to GET /v1/charts.
type ChartList struct {
	Sources []ChartSource `json:"sources"`        // all that there are
	Charts  []Chart       `json:"charts"`         // of the one that was asked for, by name; none where it has ended
	Left    int           `json:"left,omitempty"` // of its charts that are not among these: MaxCharts is the most
}

// Limits of charts.
const (
	MaxCharts = 60
	MaxBars   = 200 // of one
)

// ChartSource is what has maps that can be drawn: a script or the programs of an object file.
type ChartSource struct {
	ID    string `json:"id"`    // of a script without a client its name
	Kind  string `json:"kind"`  // script; stream, a script with a client; program
	Label string `json:"label"` // for people
	Ended string `json:"ended,omitempty"`
}

// Chart is a map's histogram, or its numbers.
type Chart struct {
	Name string     `json:"name"`           // of the map, with the key of what has several
	Hist bool       `json:"hist"`           // Bars are ranges of values, ascending; otherwise keys, the largest first
	Bars []ChartBar `json:"bars"`           // MaxBars at most
	Left int        `json:"left,omitempty"` // how many more it has
}

// ChartBar is a bucket of a histogram, or a number.
type ChartBar struct {
	Label string  `json:"label"`
	Count float64 `json:"count"`
}
