#!/usr/bin/env bash
# Requests a TPU VM, waits until it exists, installs bert-tf and runs a command:
#     export PROJECT=my-project ZONE=us-west4-a
#     deploy/tpu/queued_tpu.sh create
#     deploy/tpu/queued_tpu.sh wait
#     deploy/tpu/queued_tpu.sh install
#     deploy/tpu/queued_tpu.sh run python run_pretraining.py --do_train --use_tpu --tpu_name=local ...
#     deploy/tpu/queued_tpu.sh log
#     deploy/tpu/queued_tpu.sh delete
#
# Variables, with defaults: NAME (bert) is the name of the VM and of the request. docs/howto/tpu.md describes TYPE
# (v5litepod-8) and VERSION (v2-alpha-tpuv5-lite). SPOT=1 requests a spot VM. A request can wait for hours or days, and
# costs nothing until the VM exists. If a spot VM was stopped, delete it and start again. The run resumes from the last
# checkpoint in the bucket.
set -euo pipefail

: "${PROJECT:?Set PROJECT to a project of Google Cloud}" "${ZONE:?Set ZONE, such as us-west4-a}"
name=${NAME:-bert}
place=(--project="$PROJECT" --zone="$ZONE")

on_vm() {
    gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --command="$1"
}

state() {
    gcloud compute tpus queued-resources describe "$name" "${place[@]}" --format='value(state.state)'
}

case ${1:-} in
    create)
        gcloud compute tpus queued-resources create "$name" --node-id="$name" "${place[@]}" ${SPOT:+--spot} \
            --accelerator-type="${TYPE:-v5litepod-8}" --runtime-version="${VERSION:-v2-alpha-tpuv5-lite}"
        ;;
    wait)
        until found=$(state) && [[ $found == ACTIVE ]]; do
            echo "$(date '+%F %T') $found"
            if [[ $found == FAILED || $found == SUSPEND* ]]; then
                echo "The request has ended. Delete it, and create it again." >&2
                exit 1
            fi
            sleep "${POLL_SECONDS:-60}"
        done
        echo "The VM $name exists. It costs money until you delete it."
        ;;
    install)
        archive=$(mktemp --suffix=.tar.gz)
        trap 'rm -f "$archive"' EXIT
        git archive --format=tar.gz --output="$archive" HEAD
        gcloud compute tpus tpu-vm scp "$archive" "$name:bert-tf.tar.gz" "${place[@]}"
        on_vm 'set -e; mkdir -p bert-tf; tar -xzf bert-tf.tar.gz -C bert-tf; cd bert-tf
            sudo add-apt-repository -y ppa:deadsnakes/ppa; sudo apt-get install -y python3.11 python3.11-venv
            python3.11 -m venv .venv; .venv/bin/pip install --no-deps -r requirements-tpu.txt'
        ;;
    run)
        # The run continues if the connection ends.
        printf -v command '%q ' "${@:2}"
        on_vm "cd bert-tf && PATH=\$PWD/.venv/bin:\$PATH nohup $command > run.log 2>&1 < /dev/null &"
        ;;
    log)
        on_vm 'tail -n 40 -f bert-tf/run.log'
        ;;
    delete)
        gcloud compute tpus queued-resources delete "$name" "${place[@]}" --force --quiet
        gcloud compute tpus tpu-vm list "${place[@]}"
        ;;
    *)
        echo "Usage: queued_tpu.sh create | wait | install | run COMMAND... | log | delete" >&2
        exit 2
        ;;
esac
