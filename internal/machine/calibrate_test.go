package machine

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/guestprobe/guestprobe/internal/kvmtest"
)

func TestCalibrate(t *testing.T) {
	kvmtest.Require(t)
	r, err := Calibrate(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(r)
	t.Logf("%s", b)
}
