// Package testreport writes what has become of tests in the forms that services for continuous integration read.
package testreport
