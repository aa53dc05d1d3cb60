// Finds out from the databases of package managers which files they installed.

package inspect

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"io"
	"path"
	"strings"
)

const (
	maxDatabaseBytes = 256 << 20 // maximum bytes to read from all databases
	maxHashedBytes   = 1 << 30
	maxLine          = 64 << 10
)

// algorithms maps the size of a digest in bytes to its hash algorithm.
var algorithms = map[int]func() hash.Hash{md5.Size: md5.New, sha1.Size: sha1.New, sha256.Size: sha256.New}

// packages collects the digests of the wanted files from package databases.
type packages struct {
	*search
	wanted  map[string][]string // final paths of the wanted files, by the result of key
	digests map[string][][]byte // digests of each file, by its final path
	left    int64               // bytes of databases that may still be read
}

// vouched returns a verdict for each file whose digest is in the database of dpkg, apk or a Python package. It hashes the files in
// order, up to maxHashedBytes in total. The remaining files get the verdict notHashed.
func (s *search) vouched(files []string) map[string]verdict {
	found := map[string]verdict{}
	if len(files) == 0 {
		return found
	}
	p := &packages{search: s, wanted: map[string][]string{}, digests: map[string][][]byte{}, left: maxDatabaseBytes}
	for _, file := range files {
		p.wanted[key(file)] = append(p.wanted[key(file)], file)
	}
	p.dpkg()
	p.apk()
	p.python()
	left := int64(maxHashedBytes)
	for _, file := range files {
		if digests := p.digests[file]; len(digests) > 0 {
			found[file] = p.compare(file, digests, &left)
		}
	}
	return found
}

// key returns the path without /usr for files in /bin, /sbin and /lib*. These directories may be links into /usr, so a database may
// list the same file as /usr/bin/x or as /bin/x.
func key(file string) string {
	for _, directory := range []string{"/bin/", "/sbin/", "/lib"} {
		if rest, found := strings.CutPrefix(file, "/usr"); found && strings.HasPrefix(rest, directory) {
			return rest
		}
	}
	return file
}

func (p *packages) add(file string, sum []byte, err error) {
	if err != nil || algorithms[len(sum)] == nil {
		return
	}
	for _, final := range p.wanted[key(file)] {
		p.digests[final] = append(p.digests[final], sum)
	}
}

func (p *packages) addHex(file, text string) {
	sum, err := hex.DecodeString(text)
	p.add(file, sum, err)
}

// lines calls visit for each line of a database.
func (p *packages) lines(file string, visit func(line string)) {
	final, err := p.files.resolve(file)
	if err != nil {
		return
	}
	opened, err := p.files.open(final)
	if err != nil {
		return
	}
	defer opened.Close()
	limited := &io.LimitedReader{R: opened, N: p.left}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxLine)
	for lines.Scan() && p.files.ctx.Err() == nil {
		visit(lines.Text())
	}
	p.left = limited.N
	if lines.Err() != nil || p.left <= 0 {
		p.incomplete = true
	}
}

const dpkgInfo = "/var/lib/dpkg/info"

// dpkg reads the digests of the files of Debian packages from /var/lib/dpkg/info, and those of their configuration files from
// /var/lib/dpkg/status.
func (p *packages) dpkg() {
	for _, name := range p.files.names(dpkgInfo) {
		if strings.HasSuffix(name, ".md5sums") {
			p.lines(path.Join(dpkgInfo, name), func(line string) {
				if sum, file, found := strings.Cut(line, "  "); found {
					p.addHex("/"+file, sum)
				}
			})
		}
	}
	p.lines("/var/lib/dpkg/status", func(line string) {
		if fields := strings.Fields(line); strings.HasPrefix(line, " /") && len(fields) >= 2 {
			p.addHex(fields[0], fields[1])
		}
	})
}

// apk reads the digests of Alpine's packages.
func (p *packages) apk() {
	directory, file := "", ""
	p.lines("/lib/apk/db/installed", func(line string) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "F":
			directory = "/" + value
		case "R":
			file = path.Join(directory, value)
		case "Z":
			sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(value, "Q1"))
			p.add(file, sum, err)
		}
	})
}

// python reads the digests of the packages that pip or uv installed for each Python.
func (p *packages) python() {
	for _, library := range p.pythonLibraries(p.scope.Env) {
		for _, packages := range []string{"site-packages", "dist-packages", "."} {
			directory := path.Join(library, packages)
			for _, name := range p.files.names(directory) {
				if !strings.HasSuffix(name, ".dist-info") {
					continue
				}
				p.lines(path.Join(directory, name, "RECORD"), func(line string) {
					p.record(directory, line)
				})
			}
		}
	}
}

// record reads a line of the file RECORD, which is path,sha256=digest,size. A path with a comma is in quotation marks.
func (p *packages) record(directory, line string) {
	rest, _, _ := cutLast(line, ",")
	file, sum, found := cutLast(rest, ",sha256=")
	if !found {
		return
	}
	file = strings.ReplaceAll(strings.Trim(file, `"`), `""`, `"`)
	if !path.IsAbs(file) {
		file = path.Join(directory, file)
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(sum, "="))
	p.add(file, raw, err)
}

func cutLast(text, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[:i], text[i+len(separator):], true
	}
	return text, "", false
}

// verdict is the result of comparing a file with the package databases.
type verdict int

const (
	unknownFile verdict = iota // no package contains the file, or its content differs
	installed
	notHashed // the file was not compared, because a limit was exceeded
)

// Write discards the content. After the timeout it returns an error, so that the file is not read further.
func (p *packages) Write(content []byte) (int, error) { return len(content), p.files.ctx.Err() }

// compare hashes a file and compares the digests. left is the number of bytes that may still be hashed.
func (p *packages) compare(file string, digests [][]byte, left *int64) verdict {
	content, err := p.files.open(file)
	if err != nil {
		return unknownFile
	}
	defer content.Close()
	hashes, writers := map[int]hash.Hash{}, []io.Writer{p}
	for _, each := range digests {
		if hashes[len(each)] == nil {
			hashes[len(each)] = algorithms[len(each)]()
			writers = append(writers, hashes[len(each)])
		}
	}
	read, err := io.Copy(io.MultiWriter(writers...), io.LimitReader(content, *left))
	if *left -= read; *left == 0 || p.files.ctx.Err() != nil {
		return notHashed
	}
	for _, each := range digests {
		if err == nil && bytes.Equal(hashes[len(each)].Sum(nil), each) {
			return installed
		}
	}
	return unknownFile
}
