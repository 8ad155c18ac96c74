package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestMapHists: histograms that programs keep themselves, in values of hash maps (as biolatency and runqlat do), per vCPU, and in arrays.
func TestMapHists(t *testing.T) {
	entry := func(key string, values ...string) api.MapEntry {
		e := api.MapEntry{KeyData: json.RawMessage(key)}
		for _, v := range values {
			e.Values, e.Data = append(e.Values, ""), append(e.Data, json.RawMessage(v))
		}
		return e
	}
	var elements []api.MapEntry
	for i := range 4 {
		elements = append(elements, api.MapEntry{Key: fmt.Sprintf("%02x000000", i), Values: []string{fmt.Sprintf("%02x00000000000000", 3*i%5)}})
	}
	// table returns a table of these lines, each followed by the length of its bar.
	table := func(rows ...any) string {
		out := fmt.Sprintf("%-*sCOUNT  \n", strings.LastIndexAny(rows[0].(string), "0123456789"), "RANGE")
		for i := 0; i < len(rows); i += 2 {
			out += fmt.Sprintf("%s|%-40s|\n", rows[i], strings.Repeat("@", rows[i+1].(int)))
		}
		return out
	}
	for _, tc := range []struct {
		what string
		d    api.MapDump
		want string // the error, if it has no newline
	}{
		{"structures", api.MapDump{Values: []api.MapEntry{
			entry(`9`, `{"comm":"a\nb","slots":[1,0]}`), entry(`10`, `{"slots":[0,0,4,0,1,0],"comm":"dd"}`), entry(`{"a":1}`, `{"slots":[0,0],"comm":""}`),
		}}, "9 comm=\"a\\nb\"\n" + table("[0, 1]  1      ", 40) + "\n10 comm=\"dd\"\n" + table("[4, 7]    4      ", 40, "[8, 15]   0      ", 0, "[16, 31]  1      ", 10) +
			"\n{\"a\":1} comm=\"\"\nNothing was counted.\n"},
		{"per vCPU", api.MapDump{MapInfo: api.MapInfo{PerCPU: true}, Values: []api.MapEntry{entry(`"k"`, `[1,2]`, `[0,5]`)}},
			"\"k\"\n" + table("[0, 1]  1      ", 5, "[2, 3]  7      ", 40)},
		{"an array", api.MapDump{MapInfo: api.MapInfo{Kind: "array"}, Values: elements},
			table("[2, 3]   3      ", 30, "[4, 7]   1      ", 10, "[8, 15]  4      ", 40)},
		{"negative elements", api.MapDump{MapInfo: api.MapInfo{Name: "n", Kind: "array"}, Values: []api.MapEntry{{Key: "00000000", Values: []string{"ff"}, Data: []json.RawMessage{json.RawMessage("-1")}}, {Key: "01000000", Values: []string{"01"}, Data: []json.RawMessage{json.RawMessage("1")}}}}, "map n has no histograms: not an array of 2 to 64 counters, and its values are not arrays of counters, or structures with one"},
		{"numbers", api.MapDump{MapInfo: api.MapInfo{Name: "n", Kind: "hash"}, Values: []api.MapEntry{entry(`1`, `5`)}}, "map n has no histograms: not an array of 2 to 64 counters, and its values are not arrays of counters, or structures with one"},
		{"two arrays", api.MapDump{MapInfo: api.MapInfo{Name: "n"}, Values: []api.MapEntry{entry(`1`, `{"a":[1,2],"b":[3,4]}`)}}, "map n has no histograms: not an array of 2 to 64 counters, and its values are not arrays of counters, or structures with one"},
		{"negative", api.MapDump{MapInfo: api.MapInfo{Name: "n"}, Values: []api.MapEntry{entry(`1`, `[1,-2]`)}}, "map n has no histograms: not an array of 2 to 64 counters, and its values are not arrays of counters, or structures with one"},
		{"no types", api.MapDump{MapInfo: api.MapInfo{Name: "n"}, Values: []api.MapEntry{{Key: "01000000", Values: []string{"00112233445566778899"}}}}, "map n has no histograms: not an array of 2 to 64 counters, and its values are not arrays of counters, or structures with one"},
		{"nothing", api.MapDump{}, "The map is empty.\n"},
		{"a ring", api.MapDump{MapInfo: api.MapInfo{Name: "n"}, Ring: &api.MapRing{}}, "map n has no histograms: it is a ring"},
		{"of a script", api.MapDump{MapInfo: api.MapInfo{Name: "@l", Kind: "array"}, Values: elements}, "map @l belongs to a script: 'guestprobe script NAME' prints its histograms"},
	} {
		var out bytes.Buffer
		h, err := newMapHists(tc.d)
		if err == nil {
			err = h.print(&command.Run{Env: command.Env{Stdout: &out}})
		}
		if got := out.String(); err != nil && err.Error() != tc.want || err == nil && got != tc.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", tc.what, err, got, tc.want)
		}
	}
}

// TestMapLost: the dump of a map that had no room for the values of tasks says so.
func TestMapLost(t *testing.T) {
	var out, notes bytes.Buffer
	d := api.MapDump{MapInfo: api.MapInfo{Name: "of_task", Entries: 10}, Values: []api.MapEntry{{Key: "01", Values: []string{"02"}}}, Lost: 3}
	r := &command.Run{Env: command.Env{Stdout: &out, Stderr: &notes}}
	if err := printDump(r, d, false, false); err != nil || !strings.Contains(notes.String(), "The map was full 3 times: tasks have no value. --map-entries of_task=N") {
		t.Errorf("%q, %v", notes.String(), err)
	}
	notes.Reset()
	d.Lost = 0
	if err := printDump(r, d, false, false); err != nil || notes.Len() > 0 {
		t.Errorf("%q, %v", notes.String(), err)
	}
}
