package timeline

import (
	"fmt"
	"io"
	"strings"
)

// Writer writes a trace. It belongs to one goroutine.
type Writer interface {
	// Write writes a record: a start first, and an end last, where there is one. What a form has
	// nothing for is left out.
	Write(r *Record) error

	// Close ends the output, which is whole then whether there was an end or not. It is called
	// once, also behind an error.
	Close() error
}

// Forms of a trace beside text and the stream's own records.
const (
	Chrome   = "chrome"   // Trace Event Format, JSON
	Ftrace   = "ftrace"   // trace.dat, version 6
	Perfetto = "perfetto" // protobuf, as of Perfetto's TrackEvent
)

// Formats are the forms that New knows.
var Formats = []string{Perfetto, Ftrace, Chrome}

// suffixes are the forms that names of files ask for.
var suffixes = []struct{ suffix, format string }{
	{".pftrace", Perfetto}, {".perfetto-trace", Perfetto}, {".dat", Ftrace}, {".chrome.json", Chrome}, {".ndjson", "json"}, {".jsonl", "json"}, {".txt", "table"},
}

// FormatOf returns the form that the name of a file asks for, "" where it asks for none.
func FormatOf(path string) string {
	for _, s := range suffixes {
		if strings.HasSuffix(path, s.suffix) {
			return s.format
		}
	}
	return ""
}

// Binary reports whether a form is none for a terminal.
func Binary(format string) bool { return format == Perfetto || format == Ftrace }

// New returns a writer of one of Formats. What it writes is buffered until it is closed.
func New(format string, w io.Writer) (Writer, error) {
	switch format {
	case Perfetto:
		return newPerfetto(w), nil
	case Chrome:
		return newChrome(w), nil
	case Ftrace:
		return newFtrace(w)
	}
	return nil, fmt.Errorf("no form %q of traces", format)
}
