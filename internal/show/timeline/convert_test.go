package timeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

var update = flag.Bool("update", false, "write what is expected anew")

// savedTrace is a trace with everything that traces have.
func savedTrace(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/trace.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// convertTrace returns a saved trace in a form.
func convertTrace(t testing.TB, form string, trace []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := writerOf(t, form, &out)
	in := NewReader(bytes.NewReader(trace))
	for {
		r, err := in.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, ErrCut) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func writerOf(t testing.TB, form string, out io.Writer) Writer {
	t.Helper()
	var w Writer
	var err error
	switch form {
	case "json":
		w = NewNDJSON(out)
	case "table":
		w, err = NewText(out, TextOptions{Header: true, Totals: true})
	default:
		w, err = New(form, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// want compares with a file of testdata.
func want(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(b), string(got)); d != "" {
		t.Errorf("%s (-file +now):\n%s", name, d)
	}
}

// TestForms: a trace in each form is what is expected of it.
func TestForms(t *testing.T) {
	local := time.Local
	time.Local = time.UTC
	defer func() { time.Local = local }()
	want(t, "trace.txt", convertTrace(t, "table", savedTrace(t)))
	want(t, "trace.ndjson", convertTrace(t, "json", savedTrace(t)))

	chrome := convertTrace(t, Chrome, savedTrace(t))
	want(t, "trace.chrome.json", chrome)
	var events []map[string]any
	if err := json.Unmarshal(chrome, &events); err != nil {
		t.Fatal(err)
	}
	phases := map[any]int{}
	for _, e := range events {
		phases[e["ph"]]++
	}
	// 11 hits: 5 returns, of which one overlaps; on vCPUs again those 10 with a task; lost, boot, stop, end.
	if d := cmp.Diff(map[any]int{"M": 10, "X": 5, "i": 6 + 10 + 4, "C": 2}, phases); d != "" {
		t.Error(d)
	}
	want(t, "trace.perfetto.txt", []byte(readPerfetto(t, convertTrace(t, Perfetto, savedTrace(t)))))
}

// TestCut: a trace that ends anywhere is whole in each form.
func TestCut(t *testing.T) {
	all := savedTrace(t)
	first := bytes.IndexByte(all, '\n') + 1
	for n := first; n < len(all); n += 97 {
		var events []any
		if b := convertTrace(t, Chrome, all[:n]); json.Unmarshal(b, &events) != nil {
			t.Fatalf("of %d bytes:\n%s", n, b)
		}
		readPerfetto(t, convertTrace(t, Perfetto, all[:n]))
	}
	for _, form := range Formats { // closed before anything came
		var out bytes.Buffer
		if err := writerOf(t, form, &out).Close(); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// TestTraceCmd: Debian's trace-cmd reads a trace.dat as what it is.
func TestTraceCmd(t *testing.T) {
	path := kvmtest.RequireCommand(t, "trace-cmd")
	report := func(trace []byte, args ...string) []byte {
		t.Helper()
		file := filepath.Join(t.TempDir(), "trace.dat")
		if err := os.WriteFile(file, trace, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path, append(append([]string{"report"}, args...), file)...)
		cmd.Env = append(os.Environ(), "TZ=UTC")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || errs.Len() > 0 {
			t.Fatalf("%v\n%s%s", err, out, errs.Bytes())
		}
		return out
	}
	dat := convertTrace(t, Ftrace, savedTrace(t))
	want(t, "trace.ftrace.txt", report(dat, "-t", "-l"))
	// Its own filters see numbers as numbers.
	if got := string(report(dat, "-F", "kprobes/in:fd==7")); strings.Count(got, "fd=") != 1 || !strings.Contains(got, "fd=7 buf=0x1000 n=200") {
		t.Errorf("filtered:\n%s", got)
	}
	// Strings are what text says, each between its quotes, and so are those of an array.
	hostile := string(savedTrace(t)[:bytes.IndexByte(savedTrace(t), '\n')+1]) +
		`{"type":"hit","data":{"timeNs":3000000000,"probe":"kprobes/h","stage":"pre","text":"","addr":"0x1","args":[{"name":"s","type":"string","text":"\"a\\\" t=\\\"\\\\\\x1b\\xff\"","value":"a\" t=\"\\\u001b\ufffd","raw":["YSIgdD0iXBv/"]},` +
		`{"name":"of","type":"string[2]","text":"{\"b\\\",\\\"\",\"c\"}","value":["b\",\"","c"]},{"name":"bad","type":"string[2]","text":"{(fault),\"c\"}","value":[null,"c"]}]}}` + "\n" +
		`{"type":"end","data":{"reason":"asked","delivered":1}}` + "\n"
	dat = convertTrace(t, Ftrace, []byte(hostile))
	if got, want := string(report(dat, "-F", `kprobes/h:of_1=="c"`)), `s="a\" t=\"\\\x1b\xff" of={"b\",\"","c"} bad={(fault),"c"}`+"\n"; !strings.HasSuffix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string(report(dat, "-F", `kprobes/h:of_1=="d"`)); strings.Contains(got, "of=") {
		t.Errorf("filtered:\n%s", got)
	}
	// More than a page, with long texts and long times between.
	var long strings.Builder
	long.Write(savedTrace(t)[:bytes.IndexByte(savedTrace(t), '\n')+1])
	for i := range 5000 {
		text := strings.Repeat("x", i%3000)
		h := map[string]any{"timeNs": 3_000_000_000 + i*i*1000, "cpu": i % 3, "probe": "kprobes/long", "stage": "pre", "symbol": "f+0x4", "addr": "0x1004",
			"task": map[string]any{"pid": i + 1, "comm": "c"}, "args": []any{map[string]any{"name": "i", "type": "u32", "text": itoa(i)}, map[string]any{"name": "s", "type": "string", "text": `"` + text + `"`, "value": text}}}
		b, err := json.Marshal(map[string]any{"type": "hit", "data": h})
		if err != nil {
			t.Fatal(err)
		}
		long.Write(append(b, '\n'))
	}
	lines := strings.Split(strings.TrimSpace(string(report(convertTrace(t, Ftrace, []byte(long.String())), "-t"))), "\n")
	if len(lines) != 5001 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, line := range lines[1:] {
		f := strings.Fields(line)
		ns := 2_000_000_000 + i*i*1000
		stamp := itoa(ns/1e9) + "." + itoa(1e9 + ns%1e9)[1:] + ":"
		if len(f) < 7 || f[0] != "c-"+itoa(i+1) || f[1] != "[00"+itoa(i%3)+"]" || f[2] != stamp || f[3] != "long:" || f[4] != "(f+0x4)" || f[5] != "i="+itoa(i) {
			t.Fatalf("line %d: %.200q, want %s", i, line, stamp)
		}
	}
}

// TestNotBack: what was made for other programs is said to be that.
func TestNotBack(t *testing.T) {
	for _, form := range Formats {
		_, err := NewReader(bytes.NewReader(convertTrace(t, form, savedTrace(t)))).Next()
		want := `a trace in the form "` + form + `", which has not all that was recorded and is not read back: save it with 'guestprobe trace --format json', of which 'convert' makes this form`
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
