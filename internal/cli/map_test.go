package cli

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestPerCPUSum: the values of the vCPUs are added up if they are numbers. Structures
// and texts are not numbers, whatever their size.
func TestPerCPUSum(t *testing.T) {
	typed := func(values ...string) (out []json.RawMessage) {
		for _, v := range values {
			out = append(out, json.RawMessage(v))
		}
		return out
	}
	for _, tc := range []struct {
		what   string
		values []string
		data   []json.RawMessage
		want   string
	}{
		{"bytes", []string{"0500000000000000", "0200000000000000"}, nil, "KEY  VCPU0  VCPU1  SUM\n1    5      2      7\n"},
		{"three bytes", []string{"050000", "020000"}, nil, "KEY  VCPU0   VCPU1\n1    050000  020000\n"},
		{"negative", []string{"fbffffff", "02000000"}, typed("-5", "2"), "KEY  VCPU0  VCPU1  SUM\n1    -5     2      -3\n"},
		{"large", []string{"ffffffffffffffff", "0000000000000000"}, typed("18446744073709551615", "0"), "KEY  VCPU0                 VCPU1  SUM\n1    18446744073709551615  0      18446744073709551615\n"},
		{"a structure", []string{"0500000001000000", "0200000001000000"}, typed(`{"a":5,"b":1}`, `{"a":2,"b":1}`), "KEY  VCPU0          VCPU1\n1    {\"a\":5,\"b\":1}  {\"a\":2,\"b\":1}\n"},
		{"a text", []string{"78000000", "79000000"}, typed(`"x"`, `"y"`), "KEY  VCPU0  VCPU1\n1    \"x\"    \"y\"\n"},
	} {
		var out bytes.Buffer
		d := api.MapDump{MapInfo: api.MapInfo{PerCPU: true}, Values: []api.MapEntry{{Key: "01000000", Values: tc.values, Data: tc.data}}}
		if err := printEntries(&command.Run{Env: command.Env{Stdout: &out}}, d); err != nil || out.String() != tc.want {
			t.Errorf("%s: %v\n%s%q", tc.what, err, out.String(), tc.want)
		}
	}
}
