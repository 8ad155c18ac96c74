package testreport

import (
	"encoding/xml"
	"fmt"
	"io"
	"time"
)

// Bounds of the parts of a report about one case, in bytes.
const (
	maxLine      = 1 << 10  // of a sentence or a name
	maxJUnitText = 64 << 10 // of each text
)

// The elements of JUnit's reports, as Jenkins' xUnit plugin has them in its junit-10.xsd, and GitLab and GitHub's actions
// read them. They have no namespace.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Began    string      `xml:"timestamp,attr"` // ISO 8601 without a zone
		Host     string      `xml:"hostname,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string       `xml:"name,attr"`
		Class   string       `xml:"classname,attr"`
		File    string       `xml:"file,attr,omitempty"`
		Time    string       `xml:"time,attr"`
		Skipped *junitReason `xml:"skipped"`
		Error   *junitReason `xml:"error"`
		Failure *junitReason `xml:"failure"`
		Out     string       `xml:"system-out,omitempty"`
		Err     string       `xml:"system-err,omitempty"`
	}
	junitReason struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes the run as JUnit's XML: one suite, a test case each; system-out
// is the test's output, system-err the guest's console.
func (r *Run) JUnit(w io.Writer) error {
	s := junitSuite{
		Name: line(r.Name, maxLine), Tests: len(r.Cases), Failures: r.Count(Failed), Errors: r.Count(Errored), Skipped: r.Count(Skipped),
		Time: junitTime(r.Took), Began: r.Began.UTC().Format("2006-01-02T15:04:05"), Host: line(r.Host, maxLine),
	}
	for _, c := range r.Cases {
		x := junitCase{
			Name: line(c.Name, maxLine), Class: s.Name, File: line(c.File, maxLine), Time: junitTime(c.Took),
			Out: end(c.Output, maxJUnitText), Err: end(c.Console, maxJUnitText),
		}
		why := &junitReason{Message: line(c.ShortWhy(), maxLine), Type: line(c.Kind, maxLine), Text: end(c.Why, maxJUnitText)}
		switch c.Outcome {
		case Failed:
			x.Failure = why
		case Errored:
			x.Error = why
		case Skipped:
			x.Skipped = &junitReason{Message: why.Message}
		}
		s.Cases = append(s.Cases, x)
	}
	b, err := xml.MarshalIndent(junitSuites{Suites: []junitSuite{s}}, "", "  ")
	if err != nil {
		return fmt.Errorf("junit: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, b)
	return err
}

func junitTime(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
