package fuzzing

import (
	"flag"
	"testing"
)

// minimizing is how often the engine runs a target to make one input shorter that
// reaches something new. Its default is 60 seconds for each such input, which for
// files of some thousand bytes it always uses up: of 20 s none was left for new
// inputs. The flag -fuzzminimizetime still has the last word.
const minimizing = "100x"

func init() {
	testing.Init()
	if err := flag.Set("test.fuzzminimizetime", minimizing); err != nil {
		panic(err)
	}
}
