# Sourced by the steps' test.sh; it lies beside them in /tests.

# Whether the script prints exactly this for these arguments.
prints() {
    local expected="$1"
    shift
    [ "$("$SCRIPT" "$@" 2>/dev/null)" = "$expected" ]
}

# Writes the reward: a share of the checks that passed.
reward() {
    awk -v passed="$1" -v all="$2" 'BEGIN { print passed / all }' > /logs/verifier/reward.txt
}
