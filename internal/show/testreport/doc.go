// Package testreport writes the results of tests in formats that services for
// continuous integration read.
package testreport
