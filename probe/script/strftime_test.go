package script

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestStrftime compares with the system's date(1), which calls the C library's strftime.
func TestStrftime(t *testing.T) {
	date, err := exec.LookPath("date")
	if err != nil {
		t.Fatal(err)
	}
	const all = "%a %A %b %B %c %C %d %D %e %F %g %G %h %H %I %j %k %l %m %M %p %P %r %R %s %S %T %u %U %V %w %W %x %X %y %Y %z %Z %% %t|"
	r := rand.New(rand.NewPCG(1, 2))
	times := []int64{0, 951782400, 1230767999, 1293839999, 1293840000}
	for range 40 {
		times = append(times, r.Int64N(1<<32))
	}
	for _, at := range times {
		v := time.Unix(at, 0).UTC()
		cmd := exec.Command(date, "-u", "-d", "@"+strconv.FormatInt(at, 10), "+"+all)
		cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strftime(all, v), strings.TrimSuffix(string(out), "\n"); got != want {
			t.Errorf("at %d\n%q\nwant\n%q", at, got, want)
		}
	}
	if got := strftime("%f %H%", time.Unix(5, 1234567).UTC()); got != "001234 00%" {
		t.Errorf("%q", got)
	}
}
