//! Command lines as projects print them for their users, shortened and with scripts of common names: each becomes a
//! launch that rankrun accepts, with as many workers on a node.

use super::*;

/// `RANKRUN_UPDATE=1` writes the file with the results anew.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "a test that rewrites its files")]
fn assert_converted(name: &str, lines: &[(u32, &str)]) {
    let mut text = String::new();
    for (workers, line) in lines {
        assert_eq!(workers_of(line), *workers, "{line}");
        let (conversion, shell) = converted(line).unwrap();
        text.push_str(&format!("$ {line}\n{}\n", conversion.as_shell(&shell)));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/other_launcher/convert/tests/");
    let path = format!("{path}{name}.txt");
    if std::env::var_os("RANKRUN_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{name}");
}

#[test]
fn torchrun_lines_of_projects_are_converted() {
    assert_converted(
        "torchrun",
        &[
            // nanoGPT
            (8, "torchrun --standalone --nproc_per_node=8 train.py config/train.py"),
            (
                8,
                "torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --master_port=1234 train.py",
            ),
            (
                8,
                "NCCL_IB_DISABLE=1 torchrun --nproc_per_node=8 --nnodes=2 --node_rank=$RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py",
            ),
            // Megatron
            (8, "torchrun ${DISTRIBUTED_ARGS[@]} pretrain.py ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]}"),
            (
                8,
                "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT pretrain.py --tensor-model-parallel-size 2",
            ),
            // LLaMA-Factory, Open-Sora, TorchTitan
            (8, "FORCE_TORCHRUN=1 torchrun --nproc_per_node 8 -m package.cli train examples/sft.yaml"),
            (
                8,
                "torchrun --standalone --nproc_per_node 8 examples/run.py configs/sample.py --prompt \"a cat, sitting\"",
            ),
            (
                8,
                "PYTORCH_ALLOC_CONF=\"expandable_segments:True\" torchrun --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint=\"localhost:0\" --local-ranks-filter 0 --role rank --tee 3 -m package.train --job.config_file ${CONFIG_FILE}",
            ),
            // timm, DINO, torchvision
            (4, "torchrun --nproc_per_node=4 train.py --model resnet50 --amp -j 4"),
            (
                8,
                "python -m torch.distributed.launch --nproc_per_node=8 main.py --arch vit_small --data_path /path/to/imagenet/train",
            ),
            (
                8,
                "python3 -u -m torch.distributed.launch --nproc_per_node=8 --master_port=29501 --use_env tools/train.py cfg.yaml --launcher pytorch",
            ),
            (8, "torchrun --nproc_per_node=8 train.py --model inception_v3 --test-only"),
            // torchtune, Hugging Face, elastic
            (2, "uv run torchrun --nproc_per_node 2 examples/run.py --model_name_or_path x --fp16"),
            (
                4,
                "torchrun --nnodes=1:4 --nproc_per_node=4 --max_restarts=3 --rdzv_id=100 --rdzv_backend=c10d --rdzv_endpoint=$HEAD_NODE_ADDR:29400 train.py",
            ),
            (
                8,
                "srun torchrun --nnodes 2 --nproc_per_node gpu --rdzv_id $RANDOM --rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500 train.py 50 10",
            ),
            (1, "torchrun train.py \\\n  --lr 0.1 \\\n  --name 'a b'"),
            // Of batch scripts of Slurm
            (
                8,
                "srun --ntasks-per-node=1 torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d --rdzv_endpoint $HEAD_NODE:29500 train.py --config cfg.yaml",
            ),
            (
                4,
                "srun --nodes=$SLURM_NNODES --ntasks=$SLURM_NNODES --cpu-bind=none python -m torch.distributed.run --nnodes=$SLURM_NNODES --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py",
            ),
            (
                8,
                "$ HF_HOME=~/hf OMP_NUM_THREADS=8 torchrun --nproc_per_node=8 train.py --data 'shards/{000..099}.tar'",
            ),
        ],
    );
}

#[test]
fn mpirun_lines_of_projects_are_converted() {
    assert_converted(
        "mpirun",
        &[
            // Horovod
            (
                4,
                "mpirun -np 4 -H localhost:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py",
            ),
            (
                4,
                "mpirun -np 16 -H s1:4,s2:4,s3:4,s4:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 python train.py",
            ),
            // llm.c, guided-diffusion, NCCL tests
            (8, "mpirun -np 8 ./train -i 'data/*.bin' -o log -e d12"),
            (8, "mpiexec -n 8 python examples/run.py --image_size 64 --batch_size 128"),
            (8, "mpirun -np 16 -N 8 --hostfile hosts --allow-run-as-root ./build/perf -b 8 -e 8G -f 2 -g 1"),
            // Intel
            (
                2,
                "mpirun -n 2 -ppn 2 -genv OMP_NUM_THREADS 16 -genv I_MPI_PIN_DOMAIN socket -genv CCL_ATL_TRANSPORT ofi python -u train.py",
            ),
            (1, "mpiexec -hosts h1,h2 -ppn 1 -n 2 -l -genv CCL_LOG_LEVEL=info python main.py"),
            (
                8,
                "mpirun --allow-run-as-root --tag-output -np 8 --bind-to none --oversubscribe python3 -m package.train --epochs 3",
            ),
            (2, "/usr/lib64/openmpi/bin/mpirun --np 2 --timeout 600 python3.11 train.py"),
            // Uneven shares, and the ways to spread them
            (3, "mpirun -np 5 -H s1:4,s2:4 python train.py"),
            (1, "mpirun -np 2 --map-by node -H s1:4,s2:4 python train.py"),
            (2, "mpirun -np 3 -bynode -H s1:4,s2:4 python train.py"),
            (5, "mpirun -np 10 -H s1:4,s2:8 python train.py"),
            (2, "mpirun -np 2 ./train data/*.bin --layer {1..3}"),
            (
                8,
                "mpirun -np 16 -npernode 8 -H h1:8,h2:8 -x MASTER_ADDR=$MASTER_ADDR -x NCCL_SOCKET_IFNAME=eth0 -x PYTHONPATH --bind-to none python train.py --epochs ${EPOCHS:-3}",
            ),
        ],
    );
}

#[test]
fn srun_lines_of_projects_are_converted() {
    assert_converted(
        "srun",
        &[
            // Lightning, NeMo
            (
                8,
                "srun --nodes=2 --ntasks-per-node=8 --gres=gpu:8 python3 train.py trainer.devices=8 trainer.num_nodes=2",
            ),
            (
                8,
                "srun --container-image=nvcr.io/x:24.01 --container-mounts=/data:/data --ntasks-per-node=8 -N 4 --mpi=pmix --no-container-mount-home -o log.out -l bash -c 'python /opt/train.py exp.name=$EXP'",
            ),
            // OpenMMLab, InternLM, submitit
            (
                8,
                "GPUS_PER_NODE=8 srun -p partition --job-name=job --gres=gpu:8 --ntasks=8 --ntasks-per-node=8 --cpus-per-task=5 --kill-on-bad-exit=1 python -u tools/train.py cfg.py --launcher=slurm",
            ),
            (8, "srun -p llm -n 8 --gres=gpu:8 python train.py --config ./configs/7B.py"),
            (4, "srun -n4 -N1 -t 01:00:00 -A account --export=ALL,NCCL_DEBUG=INFO python train.py"),
            (1, "srun --unbuffered --output log_%t.txt --error log_%t.err -N 2 -n 2 python train.py"),
            (
                8,
                "srun --nodes $NNODES --ntasks-per-node 8 --gpus-per-task 1 --cpu-bind=none --gpu-bind=none python -m package.train",
            ),
            (8, "srun --jobid $SLURM_JOB_ID --overlap --cpu_bind=v --accel-bind=gn python -u main.py"),
            (8, "srun python main.py --lr 0.1"),
            (2, "srun -n 3 -N 2 python train.py"),
            (
                8,
                "srun --ntasks-per-node=8 --gpus-per-task=1 --cpus-per-task=12 python -u train.py trainer.num_nodes=$SLURM_NNODES",
            ),
            (
                8,
                "srun --nodelist=gpu[01-04] --ntasks-per-node=8 --export=ALL,NCCL_DEBUG=WARN python train.py",
            ),
            (4, "srun -N 1-2 -n 8 python train.py"),
            (1, "srun -N 2 bash -c 'torchrun --nproc_per_node 8 --node_rank $SLURM_NODEID train.py'"),
        ],
    );
}

#[test]
fn torchx_and_horovodrun_lines_of_projects_are_converted() {
    assert_converted(
        "torchx_horovodrun",
        &[
            (2, "torchx run dist.ddp -j 1x2 --script train.py"),
            (4, "torchx run --scheduler local_cwd dist.ddp -j 1x4 --script main.py -- --epochs 3"),
            (
                8,
                "torchx run -s slurm -cfg partition=gpu,time=01:00:00 dist.ddp -j 2x8 --gpu 8 --memMB 64000 -m package.train -- --lr 0.1",
            ),
            (
                8,
                "torchx run -s kubernetes --workspace . dist.torchrun -j 1:4x8 --max_retries 3 --env NCCL_DEBUG=INFO --image x:1 --script train.py",
            ),
            (4, "torchx run -s local_cwd dist.ddp -j 2x4 --script main.py -- --lr 0.1"),
            (4, "horovodrun -np 4 -H localhost:4 python train.py"),
            (4, "horovodrun -np 8 -H h1:4,h2:4 --network-interface eth0 python train.py --batch-size 64"),
            (4, "horovodrun -np 16 -H server1:4,server2:4,server3:4,server4:4 python train.py"),
            (
                4,
                "horovodrun -np 8 --min-np 4 --max-np 12 --slots-per-host 4 --host-discovery-script discover_hosts.sh python train.py",
            ),
            (
                4,
                "horovodrun --gloo --verbose --fusion-threshold-mb 32 -np 8 -hostfile hosts python -u main.py --batch-size 32",
            ),
        ],
    );
}

#[test]
fn accelerate_lines_of_projects_are_converted() {
    assert_converted(
        "accelerate",
        &[
            (8, "accelerate launch --multi_gpu --num_processes 8 train.py"),
            (1, "accelerate launch --num_processes 1 train.py --lr 1"),
            (8, "accelerate launch --num_processes=8 --mixed_precision=bf16 train.py --model_name_or_path x"),
            (
                4,
                "accelerate launch --num_processes 4 --num_machines 1 --dynamo_backend no -m package.train cfg.yaml",
            ),
            (
                8,
                "accelerate launch --multi_gpu --num_machines 2 --num_processes 16 --machine_rank 0 --main_process_ip 10.0.0.1 --main_process_port 29500 train.py",
            ),
            (2, "accelerate launch --gpu_ids 0,1 --multi_gpu --num_processes 2 train.py"),
            (1, "CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 1 --mixed_precision fp16 train.py"),
            (4, "accelerate-launch --num_processes 4 --multi_gpu --main_process_port 29501 train.py"),
            (4, "python -m accelerate.commands.launch --multi_gpu --num_processes 4 train.py --fsdp x"),
            (8, "accelerate launch --use_deepspeed --zero_stage 2 --num_processes 8 train.py"),
            (
                8,
                "accelerate launch --use_fsdp --num_processes 8 --fsdp_sharding_strategy FULL_SHARD train.py",
            ),
            (2, "accelerate launch --cpu --num_processes 2 train.py"),
            (4, "accelerate launch --config_file configs/fsdp.yaml train.py --model x"),
            (
                8,
                "accelerate launch --config_file configs/fsdp.yaml --num_processes 8 --main_process_port 29501 train.py",
            ),
            (
                8,
                "srun --ntasks-per-node=1 accelerate launch --multi_gpu --num_machines $SLURM_NNODES --num_processes 16 --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port 29500 train.py",
            ),
            (
                8,
                "uv run accelerate launch --multi_gpu --num_processes 8 --rdzv_backend static --same_network train.py",
            ),
        ],
    );
}

#[test]
fn deepspeed_lines_of_projects_are_converted() {
    assert_converted(
        "deepspeed",
        &[
            (8, "deepspeed train.py --deepspeed --deepspeed_config ds_config.json"),
            (4, "deepspeed --num_gpus=4 train.py --deepspeed ds_config.json"),
            (8, "deepspeed --num_gpus 8 --master_port 29600 train.py --model_name_or_path x"),
            (2, "deepspeed --include localhost:0,1 train.py --deepspeed ds.json"),
            (1, "deepspeed --num_gpus 1 main.py"),
            (
                3,
                "deepspeed --include localhost:0,2,4 --master_port 29511 main.py --deepspeed_config ds.json --output_dir ~/out",
            ),
            (8, "deepspeed --num_nodes 1 --num_gpus 8 --no_python ./train --lr 1"),
            (4, "deepspeed --include localhost:4,5,6,7 train.py"),
            (2, "CUDA_VISIBLE_DEVICES=4,5 deepspeed train.py"),
            (2, "DS_ACCELERATOR=cpu deepspeed --num_gpus 2 train.py"),
            (7, "deepspeed --exclude localhost:0 train.py"),
            (2, "deepspeed --include=\"localhost:2,5\" --master_port 60000 train.py --fp16"),
            (8, "deepspeed --no_local_rank --num_gpus 8 train.py"),
            (8, "deepspeed --module --num_gpus 8 package.train --lr 1"),
            (4, "deepspeed --num_nodes 1 --num_gpus 4 main.py --zero_stage 3"),
            (8, "NCCL_DEBUG=INFO deepspeed --num_gpus=8 --bind_cores_to_rank train.py"),
            (8, "ds --num_gpus=8 train.py"),
        ],
    );
}
