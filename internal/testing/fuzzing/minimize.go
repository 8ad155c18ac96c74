package fuzzing

import (
	"flag"
	"testing"
)

// minimizing is how often the engine runs a target to shorten one input that
// reaches something new. Its default is 60 seconds for each such input, which it
// always uses up for files of some thousand bytes: of 20 s none was left for new
// inputs. The flag -fuzzminimizetime still overrides it.
const minimizing = "100x"

func init() {
	testing.Init()
	if err := flag.Set("test.fuzzminimizetime", minimizing); err != nil {
		panic(err)
	}
}
