package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
)

const (
	keyVariable = "MULTISTEP_OPERATOR_KEY" // phases do not get this variable, and cannot read PID 1's environment
	keyBytes    = 32
)

// Key seals messages. The zero value means that the operator gave no key.
type Key struct{ gcm cipher.AEAD }

// FromEnvironment returns the key that the operator set in the container's environment, or the zero value.
func FromEnvironment() (Key, error) {
	digits := os.Getenv(keyVariable)
	if digits == "" {
		return Key{}, nil
	}
	key, err := hex.DecodeString(digits)
	if err != nil || len(key) != keyBytes {
		return Key{}, fmt.Errorf("%s is not %d hexadecimal digits", keyVariable, 2*keyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return Key{}, err
	}
	gcm, err := cipher.NewGCM(block)
	return Key{gcm}, err
}

// Exists returns whether the operator gave the container a key.
func (k Key) Exists() bool { return k.gcm != nil }

// Open returns the request in a message, and the nonce to which its answer is bound.
func (k Key) Open(message []byte) (request, nonce []byte, err error) {
	if len(message) < k.gcm.NonceSize() {
		return nil, nil, errors.New("the message is too short")
	}
	nonce = message[:k.gcm.NonceSize()]
	request, err = k.gcm.Open(nil, nonce, message[len(nonce):], []byte("request"))
	return request, nonce, err
}

// Answer returns the message with the answer to the request that had this nonce.
func (k Key) Answer(answer, requestNonce []byte) []byte {
	nonce := make([]byte, k.gcm.NonceSize())
	rand.Read(nonce)
	return k.gcm.Seal(nonce, nonce, answer, append([]byte("answer"), requestNonce...))
}
