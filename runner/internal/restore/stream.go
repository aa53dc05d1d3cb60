// Reads and verifies an increment, the manifest first, and applies its entries one by one.

package restore

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"strings"

	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/spool"
	"multistep.dev/runner/internal/wire"
)

const (
	readBuffer = 256 << 10
	// perEntry is the maximum size in bytes of the headers and attributes of one entry in a tar stream.
	perEntry = 2 << 20
)

// Options describe a restore.
type Options struct {
	Root  string   // directory to which files are restored, "/" in a container
	Spool string   // directory for a temporary file
	Own   []string // paths that are never restored, because they belong to the runner
	Paths []string // directories to restore, or none to restore everything
}

// Restorer restores increments in their order.
type Restorer struct {
	options  Options
	limits   wire.CheckpointLimits
	spool    *os.File // compressed manifest of the current increment
	previous string
	Result   wire.RestoreResult
}

// New returns a Restorer. The caller must close it.
func New(options Options, limits wire.CheckpointLimits) (*Restorer, error) {
	file, err := spool.New(options.Spool)
	return &Restorer{options: options, limits: limits, spool: file}, err
}

// Close releases the temporary file.
func (r *Restorer) Close() error { return r.spool.Close() }

func damaged(format string, args ...any) *wire.Error {
	return wire.Errorf(wire.CodeDamaged, format, args...)
}

// Manifest reads the compressed manifest of the next increment. It returns an error if the manifest has another digest, does not
// follow the previous increment, or exceeds a limit. Nothing of a rejected increment is restored.
func (r *Restorer) Manifest(ctx context.Context, body io.Reader, digest string) error {
	if err := r.store(body); err != nil {
		return err
	}
	lines, err := r.open()
	if err != nil {
		return err
	}
	if err := r.measure(ctx, lines, digest); err != nil {
		return err
	}
	if lines.SHA256() != digest {
		return damaged("the manifest %s has the digest %s", digest, lines.SHA256())
	}
	if lines.Header.Previous != r.previous {
		return damaged("the increment %s follows %q, not %q", digest, lines.Header.Previous, r.previous)
	}
	r.previous, r.Result.Manifest = digest, digest
	return nil
}

// store writes the compressed manifest to the temporary file.
func (r *Restorer) store(body io.Reader) error {
	if err := r.spool.Truncate(0); err != nil {
		return err
	}
	if _, err := r.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	limit := r.manifestBytes()
	n, err := io.Copy(r.spool, io.LimitReader(body, limit))
	if err == nil && n == limit {
		return r.tooLarge()
	}
	return err
}

// manifestBytes returns the maximum size of a manifest, compressed or not. Packing counts the manifest's lines, except the first,
// as part of maxBytes.
func (r *Restorer) manifestBytes() int64 {
	const first = 1 << 20
	return min(r.limits.MaxBytes, math.MaxInt64-first) + first
}

// measure reads all entries. It returns an error if an entry is invalid, or if the entries exceed MaxFiles or MaxBytes.
func (r *Restorer) measure(ctx context.Context, lines *manifest.Reader, digest string) error {
	entries, total := 0, int64(0)
	for {
		entry, err := lines.Next()
		if err == io.EOF {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return damaged("the manifest %s: %v", digest, err)
		}
		if entries++; entries > r.limits.MaxFiles || entry.Packed() > r.limits.MaxBytes-total {
			return r.tooLarge()
		}
		total += entry.Packed()
	}
}

func (r *Restorer) tooLarge() *wire.Error {
	return wire.Errorf(wire.CodeTooLarge, "an increment has more than maxFiles (%d) entries or maxBytes (%d)", r.limits.MaxFiles, r.limits.MaxBytes)
}

// open returns a reader of the spooled manifest.
func (r *Restorer) open() (*manifest.Reader, error) {
	if _, err := r.spool.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	plain, err := gzip.NewReader(bufio.NewReader(r.spool))
	if err != nil {
		return nil, damaged("a manifest: %v", err)
	}
	lines, err := manifest.NewReader(io.LimitReader(plain, r.manifestBytes()))
	if err != nil {
		return nil, damaged("a manifest: %v", err)
	}
	return lines, nil
}

// Apply restores the increment whose manifest was read last. body is the increment's compressed tar stream. After an error, the
// increment may be restored in part. Restoring the same increments again completes it.
func (r *Restorer) Apply(ctx context.Context, body io.Reader) error {
	target, err := newTarget(ctx, r.options, r.previous)
	if err != nil {
		return err
	}
	if err := r.clear(target); err != nil {
		return err
	}
	lines, err := r.open()
	if err != nil {
		return err
	}
	err = r.apply(ctx, target, lines, body)
	err = errors.Join(err, target.close(err == nil))
	r.Result.Entries += target.entries
	r.Result.Deleted += target.deletions
	r.Result.Skipped += target.skipped
	r.Result.Bytes += target.bytes
	return err
}

// clear deletes the files that the increment deletes or replaces, except directories that stay. It does nothing if only some
// directories are restored. It runs before any content is written, so a restore never needs more space than the container's files
// took when a checkpoint was made.
func (r *Restorer) clear(target *target) error {
	if target.restricted() {
		return nil
	}
	lines, err := r.open()
	if err != nil {
		return err
	}
	clearing := clearing{target: target}
	defer clearing.close()
	for {
		entry, err := lines.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = clearing.entry(entry)
		}
		if err != nil {
			return err
		}
	}
}

func (r *Restorer) apply(ctx context.Context, target *target, lines *manifest.Reader, body io.Reader) error {
	plain, err := gzip.NewReader(bufio.NewReaderSize(body, readBuffer))
	if err != nil {
		return damaged("the stream of %s: %v", r.previous, err)
	}
	stream := &bounded{in: bufio.NewReaderSize(plain, readBuffer), ctx: ctx}
	archive := tar.NewReader(stream)
	for {
		entry, err := lines.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return damaged("the manifest %s: %v", r.previous, err)
		}
		if entry.Type == manifest.Deleted {
			if err := target.apply(entry, nil); err != nil {
				return err
			}
			continue
		}
		stream.left = perEntry + entry.Packed()
		if err := r.align(archive, entry); err != nil {
			return err
		}
		if err := target.apply(entry, &source{archive, r}); err != nil {
			return err
		}
	}
	if lines.SHA256() != r.previous {
		return damaged("the manifest %s was changed while it was restored", r.previous)
	}
	return r.atEnd(archive, stream)
}

// align reads the next tar header, which must be that of the entry.
func (r *Restorer) align(archive *tar.Reader, entry *manifest.Entry) error {
	header, err := archive.Next()
	if err != nil {
		return r.broken(err)
	}
	name := strings.TrimSuffix(strings.TrimPrefix(header.Name, "./"), "/")
	if "/"+name != string(entry.Path) || header.Size != entry.Packed() {
		return damaged("the stream of %s has %.300q of %d bytes in place of %.300q", r.previous, header.Name, header.Size, string(entry.Path))
	}
	return nil
}

// atEnd reads the end of the stream, which contains a checksum of the whole stream.
func (r *Restorer) atEnd(archive *tar.Reader, stream *bounded) error {
	stream.left = perEntry
	if _, err := archive.Next(); err == nil {
		return damaged("the stream of %s has more than its manifest", r.previous)
	} else if err != io.EOF {
		return r.broken(err)
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return r.broken(err)
	}
	return nil
}

// broken returns an error of the stream with CodeDamaged. Errors that already have a code, and errors of the context, stay the
// same.
func (r *Restorer) broken(err error) error {
	var known *wire.Error
	if errors.As(err, &known) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return damaged("the stream of %s: %v", r.previous, err)
}

// source reads a member's content. It adds a code to errors of the stream, so that they are not mistaken for errors of the
// container's files.
type source struct {
	in       io.Reader
	restorer *Restorer
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	if err != nil && err != io.EOF {
		err = s.restorer.broken(err)
	}
	return n, err
}

// bounded reads at most left bytes, and nothing after its context is done.
type bounded struct {
	in   io.Reader
	ctx  context.Context
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.left <= 0 {
		return 0, damaged("a stream is larger than its manifest")
	}
	n, err := b.in.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
