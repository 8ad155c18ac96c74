package timeline

import (
	"fmt"
	"io"
	"strings"
)

// Writer writes a trace. It belongs to one goroutine.
type Writer interface {
	// Write writes a record: a start first, and an end last, if there is one.
	// Records that the format cannot represent are left out.
	Write(r *Record) error

	// Close ends the output, which is then complete even without an end record. It
	// is called once, also after an error.
	Close() error
}

// Formats of a trace, in addition to text and the stream's own records.
const (
	Chrome   = "chrome"   // Trace Event Format, JSON
	Ftrace   = "ftrace"   // trace.dat, version 6
	Perfetto = "perfetto" // protobuf, Perfetto's TrackEvent
)

// Formats are the formats that New supports.
var Formats = []string{Perfetto, Ftrace, Chrome}

// suffixes are the formats by the suffix of a file's name.
var suffixes = []struct{ suffix, format string }{
	{".pftrace", Perfetto}, {".perfetto-trace", Perfetto}, {".dat", Ftrace}, {".trace.json", Chrome}, {".chrome.json", Chrome}, {".ndjson", "json"}, {".jsonl", "json"}, {".txt", "table"},
}

// FormatOf returns the format for a file's name, or "" if the name does not have
// one.
func FormatOf(path string) string {
	for _, s := range suffixes {
		if strings.HasSuffix(path, s.suffix) {
			return s.format
		}
	}
	return ""
}

// Binary reports whether a format is not fit for a terminal.
func Binary(format string) bool { return format == Perfetto || format == Ftrace }

// New returns a writer of one of Formats. Its output is buffered until it is
// closed.
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
