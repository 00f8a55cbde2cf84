"""A Hugging Face `Trainer` on two CPU ranks: a tiny GPT-2 from a config, data made on the spot, nothing downloaded. With the
path of rankrun in E2E_RANKRUN rank 0 prints what the launcher knows of the training."""

import os
import subprocess
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.integrations import integration_utils

VOCABULARY = 16
LENGTH = 8


class Counting(Dataset):
    """Sequences that count upwards, each from another number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) + index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    set_seed(0)
    rankrun = os.environ.get("E2E_RANKRUN")
    if rankrun:
        # As if each step took 5 s.
        integration_utils.KubeflowCallback._MIN_UPDATE_INTERVAL = 0.0
    size = {"n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **size))
    args = TrainingArguments(
        output_dir=sys.argv[1],
        use_cpu=True,
        max_steps=10,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_strategy="no",
        logging_strategy="steps" if rankrun else "no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Counting())
    result = trainer.train()
    if trainer.is_world_process_zero():
        place = f"{args.parallel_mode.value}, world size {args.world_size}"
        print(f"{place}: loss {result.training_loss:.9f}, steps {result.global_step}", flush=True)
        if rankrun:
            subprocess.run([rankrun, "status", os.environ["RANKRUN_JOB"], "--json"], check=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    # A model of DDP keeps gloo's threads for ever. One that still frees a tensor while Python ends aborts the process ("terminate
    # called without an active exception"), under any launcher.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
