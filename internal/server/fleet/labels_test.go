package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestWhere(t *testing.T) {
	l := Labels{"kernel": "6.1.12", "arch": "zen4", "image": "/boot/vmlinuz"}
	for _, tc := range []struct {
		where string
		want  bool
	}{
		{"", true}, {"kernel=6.1.12", true}, {"kernel=6.1", false}, {"kernel=6.1.*", true}, {"kernel=6.1.*,arch=zen4", true}, {"kernel=6.1.*,arch=zen3", false},
		{"arch!=zen4", false}, {"arch!=zen3", true}, {"rack!=1", true}, {"rack=*", false}, {"image=*vmlinuz", true}, {"arch=zen[34]", true},
	} {
		w, err := ParseWhere(tc.where)
		if err != nil || w.Match(l) != tc.want || w.String() != tc.where {
			t.Errorf("%q: %v, %v, want %v", tc.where, w.Match(l), err, tc.want)
		}
	}
	for _, bad := range []string{"kernel", ",", "=x", "a=", "a=[", "a b=c", "!=x", "a=b,"} {
		if _, err := ParseWhere(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestLabels(t *testing.T) {
	l := Labels{}
	for _, tc := range []struct{ text, err string }{
		{"kernel=6.1", ""}, {"kernel=6.2", "given twice"}, {"name=x", "says itself"}, {"x", "want NAME=VALUE"}, {"x=", "printable"}, {"x=a b", "printable"},
		{"x=a*", "printable"}, {"1=a", "want NAME=VALUE"}, {"x=" + strings.Repeat("y", 129), "printable"}, {"x=" + strings.Repeat("y", 128), ""},
	} {
		err := l.Add(tc.text)
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q: %v, want %q", tc.text, err, tc.err)
		}
	}
	if len(l) != 2 {
		t.Errorf("labels %v", l)
	}
}

func TestNamesInOrder(t *testing.T) {
	names := []string{"vm10", "vm2", "vm02b", "a", "vm", "vm1"}
	slices.SortFunc(names, CompareNames)
	if got := strings.Join(names, " "); got != "a vm vm1 vm2 vm02b vm10" {
		t.Error(got)
	}
}

func TestAddresses(t *testing.T) {
	for _, tc := range []struct {
		a    Address
		want string
	}{
		{Address{URL: "nats://a:4222,tls://b"}, ""}, {Address{URL: "http://a"}, "not a URL"}, {Address{URL: ""}, "not a URL"},
		{Address{URL: "nats://u:secret@a/x"}, "xxxxx"}, {Address{URL: "nats://a", Cert: "c"}, "go together"}, {Address{URL: "nats://a\x7f:secret"}, "not a URL as"},
	} {
		err := tc.a.Check()
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%v: %v, want %q", tc.a, err, tc.want)
		}
	}
}

// TestOtherVersion: a daemon that speaks another version is seen, and not asked for anything.
func TestOtherVersion(t *testing.T) {
	info := func(version string) []byte {
		return []byte(`{"name":"guestprobe","id":"AbCdEfGh12345678","version":"` + version + `","metadata":{"name":"vm9"}}`)
	}
	for version, want := range map[string]bool{"1.0.0": false, "1.7.2": false, "2.0.0": true, "10.0.0": true, "": true} {
		d, ok := daemonOf(info(version))
		if !ok || d.Name != "vm9" {
			t.Fatalf("version %q: %+v, %v", version, d, ok)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		n := &Network{}
		if want {
			if _, err := n.Dial(ctx, d, minWindow); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "vm9 speaks "+version) {
				t.Errorf("version %q: %v", version, err)
			}
		} else if !d.compatible() {
			t.Errorf("version %q is not ours", version)
		}
	}
	if _, ok := daemonOf(info(strings.Repeat("1", 200))); ok {
		t.Error("any version is taken")
	}
}
