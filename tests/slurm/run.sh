#!/usr/bin/env bash
# Runs two small sweeps on a real Slurm of one node and here, and holds the results against each
# other, byte for byte. For root on Debian, where slurm-wlm and munge are installed if they are not
# there. /etc/slurm/slurm.conf is a link while it runs; a machine that has one is left alone.
#
#   tests/slurm/run.sh BIN      BIN: the bin/ of an environment with the extra `slurm`
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(realpath "$1")
export PATH="$bin:$PATH:/usr/sbin"

if ! command -v slurmctld > /dev/null || ! command -v munged > /dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge
fi

# Jobs start Slurm's commands with no SLURM_ variable left, so they look here and nowhere else.
conf=/etc/slurm/slurm.conf
if [ -e $conf ]; then
    echo "$conf: this machine is part of a cluster already; nothing was started" >&2
    exit 1
fi

work=$(mktemp -d)
stop() {
    code=$?
    set +e
    if [ $code -ne 0 ]; then
        tail -n 20 "$work"/slurm*.log
        find "$work"/cluster/.snakemake/slurm_logs -name '*.log' -exec tail -n 40 {} +
    fi
    for daemon in slurmd slurmctld munged; do
        if [ -e "$work/$daemon.pid" ]; then
            pid=$(cat "$work/$daemon.pid")
            kill "$pid"
            timeout 20 tail --pid="$pid" -f /dev/null
        fi
    done
    rm -rf $conf "$work"
    exit $code
}
trap stop EXIT

# The cluster.
chmod 755 "$work"
mkdir "$work"/{state,spool,here,cluster}
cores=$(nproc)
sed -e "s|@HOST@|$(hostname -s)|; s|@USER@|$(id -un)|; s|@WORK@|$work|; s|@CORES@|$cores|" \
    -e "s|@MEMORY@|$(free -m | awk '/^Mem:/ {print $2}')|" tests/slurm/slurm.conf > "$work/slurm.conf"
ln -s "$work/slurm.conf" $conf
mungekey --create --keyfile "$work/munge.key"
munged --key-file "$work/munge.key" --socket "$work/munge.socket" --pid-file "$work/munged.pid" \
    --log-file "$work/munged.log" --seed-file "$work/munged.seed" --force
slurmctld
slurmd
for _ in $(seq 30); do
    if [ "$(sinfo -h -o %T)" = idle ]; then break; fi
    sleep 1
done
sinfo

# The same files in two folders, so that neither run finds what the other has measured. The job has
# memory for the largest model that the sweeps put on a CPU (memory_gb is at most memory_share of it).
for folder in here cluster; do
    git ls-files -z | xargs -0 cp --parents -t "$work/$folder"
done
chosen=(sweeps=counting-ladder,hybrid,zoo shard=40)
(cd "$work/here" && snakemake --cores "$cores" --config "${chosen[@]}")
# Threads and memory given here replace all of the profile's.
on_slurm() {
    (cd "$work/cluster" && snakemake --profile profiles/slurm \
        --set-threads measure="$cores" reference_counts="$cores" \
        --set-resources measure:mem_mb=12000 reference_counts:mem_mb=12000 \
        --slurm-no-account --slurm-status-command squeue \
        --slurm-init-seconds-before-status-checks 2 --seconds-between-status-checks 2 "$@")
}
on_slurm --config "${chosen[@]}"

# Slurm ran it: every job ended well, and there are thirteen. Measuring jobs request cores and memory:
# nine measure 40 points of each sweep or fewer, and one counts the classes of transformers. The
# points of all sweeps are one job, their comparisons and charts another, and the report a third;
# these request what one rule takes.
columns="%T %C processors %m %k"
ended=$(squeue --states all --noheader --format "$columns" | sort)
echo "$ended"
[ "$(wc -l <<< "$ended")" = 13 ]
for job in \
    "$cores processors 12000M .*measure_wildcards_1_9" \
    "$cores processors 12000M .*measure_wildcards_9_9" \
    "$cores processors 12000M .*reference_counts_wildcards_zoo" \
    "1 processors 4000M .*points" \
    "1 processors 4000M .*compare_compare_zoo" \
    "1 processors 4000M .*module_trees"; do
    grep "^COMPLETED $job" <<< "$ended"
done

# Models may take a share of what the job asked for, and not of the node.
grep "what the Slurm job asked for" "$work/cluster/results/logs/measure-1-of-9.log"

# Times live in provenance.json, in logs and in the records of how results were made; measurements are
# filed by the job that made them.
diff -r -x 'provenance.json*' -x logs -x .records -x measurements "$work"/{here,cluster}/results

# A sweep with device: cuda requests a GPU from Slurm, and this node has none; its points need none.
cat > "$work/cluster/configs/sweeps/gpu.yaml" << END
title: One GPU
question: Is it asked for?
base: gpt-2-124m
grid: {n_layer: [1]}
measure: {device: cuda}
END
on_slurm --config sweeps=gpu -- results/gpu/points.parquet
if on_slurm --config sweeps=gpu -- results/gpu/comparison.parquet > "$work/gpu.log" 2>&1; then
    exit 1
fi
grep "Invalid generic resource" "$work/gpu.log"

tables=$(find "$work/here/results" -name '*.parquet' -not -path '*/measurements/*' | wc -l)
echo "On Slurm as here, byte for byte: the page and $tables tables."
