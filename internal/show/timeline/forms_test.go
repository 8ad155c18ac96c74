package timeline

import (
	"bytes"
	"io"
	"testing"
)

// TestSameTrace: a trace whose JSON means the same is the same, however it is written: with further members after a hit's data, with spaces, without the last
// newline.
func TestSameTrace(t *testing.T) {
	trace := flood(t, 6)
	want := convertTrace(t, "table", trace)
	for what, same := range map[string][]byte{
		"further members": bytes.ReplaceAll(trace, []byte("}}\n"), []byte(`},"more":{"a":[1]}}`+"\n")),
		"spaces":          bytes.ReplaceAll(trace, []byte(`"data":{`), []byte(`"data": {`)),
		"no last newline": bytes.TrimSuffix(trace, []byte("\n")),
	} {
		if got := convertTrace(t, "table", same); !bytes.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
		}
	}
	in := NewReader(bytes.NewReader(trace[:len(trace)-2]))
	for {
		if _, err := in.Next(); err == io.EOF {
			t.Fatal("a trace that was cut in its last line is whole")
		} else if err != nil {
			break
		}
	}
	if !in.Half {
		t.Error("a trace that was cut in its last line has no half line")
	}
	for _, bad := range []string{`{"type":"hit","data":{"cpu":1},"more":}`, `{"type":"hit","data":{"cpu":1}} {}}`, `{"type":"hit","data":{"cpu":1},"type":"end"}`} {
		first, rest, _ := bytes.Cut(trace, []byte("\n"))
		in := NewReader(bytes.NewReader(bytes.Join([][]byte{first, []byte(bad), rest}, []byte("\n"))))
		if _, err := in.Next(); err != nil {
			t.Fatal(err)
		}
		if r, err := in.Next(); err == nil {
			t.Errorf("%s is read as %+v", bad, r)
		}
	}
}
