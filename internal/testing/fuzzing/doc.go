// Package fuzzing keeps the fuzz targets of packages whose tests import it at work.
package fuzzing
