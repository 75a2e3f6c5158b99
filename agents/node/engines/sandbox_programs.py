"""The two shell programs of the process sandbox: what starts a workload, and what runs where an image names nothing."""

# The launcher stays the workload's parent, so that the exit code is known even if the agent was dead when it ended.
# `trap :` (not `''`): an ignored signal would be inherited by the workload.
LAUNCHER = """
echo $$ > pid.new && mv pid.new pid
trap : TERM INT HUP
"$@" &
child=$!
while :; do
  wait $child; code=$?
  kill -0 $child 2>/dev/null || break
done
echo $code > exit.new && mv exit.new exit
"""
# What runs for an image without a command: it shows its GPUs and then lives until it is stopped.
DEMO = """
trap 'echo "stopping: SIGTERM received"; exit 0' TERM
echo "process sandbox (no container engine on this machine): $GPUYARD_IMAGE"
n=0; IFS=,
for gpu in $GPUYARD_GPU_UUIDS; do echo "GPU $n: $gpu${GPUYARD_SIMULATED:+ (simulated)}"; n=$((n+1)); done
echo "$n GPUs visible; rank ${NODE_RANK:-0} of ${NNODES:-1}"
beat=0
while :; do
  beat=$((beat+1)); echo "heartbeat $beat"
  if [ $beat -lt 120 ]; then sleep 1 & else sleep 15 & fi
  wait $!
done
"""
