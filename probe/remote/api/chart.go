package api

// ChartList is the answer to GET /v1/charts.
type ChartList struct {
	Sources []ChartSource `json:"sources"`        // all sources
	Charts  []Chart       `json:"charts"`         // of the source that was asked for, by name, MaxCharts at most; empty if it has ended
	Left    int           `json:"left,omitempty"` // its charts that are not among these
}

// Limits of charts.
const (
	MaxCharts = 60
	MaxBars   = 200 // of one
)

// ChartSource is a source of maps that can be drawn: a script, or the programs of an object file.
type ChartSource struct {
	ID    string `json:"id"`                                        // of a script without a client: the script's name
	Kind  string `json:"kind" openapi:"enum=script|stream|program"` // script; stream: a script with a client; program
	Label string `json:"label"`                                     // for people
	Ended string `json:"ended,omitempty"`                           // why it has ended
}

// Chart is a map's histogram, or its numbers.
type Chart struct {
	Name string     `json:"name"`           // of the map, with the key if the map has several charts
	Hist bool       `json:"hist"`           // Bars are ranges of values, ascending; otherwise keys, the largest first
	Bars []ChartBar `json:"bars"`           // MaxBars at most
	Left int        `json:"left,omitempty"` // bars that are left out
}

// ChartBar is a bucket of a histogram, or a number.
type ChartBar struct {
	Label string  `json:"label"`
	Count float64 `json:"count"`
}
