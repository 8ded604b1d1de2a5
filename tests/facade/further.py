"""Further public projects, which nothing of the facade was written for: `python tests/facade further`.

They were named, with the digests of their source distributions, before the first of their files was compiled: ten of
them, then eleven more, six, five, five and nineteen. Each is judged by `opforge why-not --cpu`: whether its C++
compiles on the facade as it is, and each line that keeps it. Their setup scripts do not run; pip's download of a
source distribution runs some, so put the archives into the folder if that fails.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FIRST = {
    "FastGeodis-1.0.5": "2869ecfa8d6ab0b54284d8f819e68458da4cc7b10e5282bd69d4a0fcadc3fead",
    "chamferdist-1.0.3": "ac9d3a723329d230bcdd5ee8a01f13632ebae31b2ae221116579637ed57a4567",
    "inplace-abn-1.1.0": "7c286ca53d35cb37b0d1f8b9beb5a910c694129d3d4f7b8e53188370bb260c27",
    "mmcv-2.2.0": "ac479247e808d8802f89eadf04d4118de86bdfe81361ec5aed0cc1bf731c67c9",
    "openpifpaf-0.13.11": "f15936201fe5180fddda9e42437d4c41d6884e6130387e9e67dfc79240dcc61b",
    "signatory-1.2.6.1.9.0": "c9ab17df6286688c1c7b12c0e906031a1fe7681dfca551876c1ff616e12807d8",
    "torch_discounted_cumsum-1.1.0": "34e6a7e10f416a7aa84e5fb4e00d6a84a0cfbb0a68bcf22a3434488360f0ea37",
    "torch_harmonics-0.8.0": "b44340184416283a3636640a9050c2187515d6bd9858fa0421b048b66465f773",
    "torch_linear_assignment-0.1.0": "317566b2781a31a1253141a94d9a7cb8ece05be131741f582634ebbd791435d4",
    "torch_sparse-0.6.18": "2f14c510a6e93f404c6ea357210615b3c15a71731f9dbd86f25434e34fb5a741",
}
SECOND = {
    "dbscan_torch-0.2.0": "ae596989050fafa415c2a7d2199a75e0baae2d401cb71da6cd1b042f82a1b653",
    "fairseq-0.12.2": "34f1b18426bf3844714534162f065ab733e049597476daa35fffb4d06a92b524",
    "optimum_quanto-0.2.7": "91b5c2dc8a9100297dc7924a93747fb77ab010784b5e1f6d0208976ba054dade",
    "qtorch-0.3.0": "3fc2e9b27d58d18304ac46511ea03a3eb20f852944f6a5b6ef71b974c2da20bf",
    "quad_iou-0.2.0": "d3acf4de3ec679e4d58e550c5b09036cf61ad24b433b584afb6966b3945c032c",
    "torch-points-kernels-0.7.0": "a93d6c69fe2035e81c066b6ca6d2264cecdb368677152a231a69f686f00f6571",
    "torch_ans-0.4.0": "61d29606a10530be68ea423c2ead19a548cf03259b11412b7928f304d79560c8",
    "torch_cluster-1.6.3": "78d5a930a5bbd0d8788df8c6d66addd68d6dd292fe3edb401e3dacba26308152",
    "torch_householder-1.0.1": "9a4b240c68947491c4e96a78771497562650f9a555001e062a0969fce206f786",
    "torch_kdtree-1.0": "ead1029568e8783d57c74f6ff19b61424bdef9d2696cd97e5f74f48aa3ce70b6",
    "torchcompactradius-0.5.5": "2b39769aee71f21e92d2d1fbb60b64053aa766e6dfd1fbbc7f5f5b49ca93af67",
}
THIRD = {
    "haste_pytorch_cpu-0.5.5": "8d4ecc4c67605f45fcd83bd46d80dbfad35744f5582c8801c4234b65d3c08e24",
    "lanms-pytorch-1.0.3": "9e1d18cc12b6777dc48c3ee7a5e445f027cb4adec82c5687a617745737ba1555",
    "qtorch_plus-0.2.0": "76496a8cb347fed7374dadf6ec4db86fa02290918e1ae06605508f4d835e309a",
    "torch-baidu-ctc-0.3.0": "1675682ca93d0915bfd54591b978bdd4bb78f12f73b9190326be29825b5e6e36",
    "torchph-0.1.1": "cae6617699af3fda333603973c3df536451d482541fd13843e6e7a3b47b76493",
    "torchtt-0.5.0": "9794b1dfac2274e402f10cacd8c57c9b14ea806052c9e9390c54755e65fbeb27",
}
FOURTH = {
    "beamgrad-2.3.0": "557ceba74e5dc6f056e658602d7dd0a583ea7c25a6ee50bd83488baae80fb556",
    "foldedtensor-0.4.0": "0e345887582bd86cf99fd77c2ca29c9efdc1e8d97ddc8240ff72b4192270c404",
    "hamming_sim_pytorch-0.1.2.2": "c0b79445c718dffb74a6d9457b56381bbc235818bd7e42e201977f022cfe0201",
    "sru-2.6.0": "e472e32bb3492d10faa121a29f985660c81fb649989924da90c8d1fcafd1152c",
    "torch_edit_distance-0.4.0": "ce402efa87680f9215858d5d36e70115b2212cc09feb248a8d6e29508b98fe9c",
}
FIFTH = {
    "nncf-3.4.0": "40b835e275b091197b853344de98ebe1026b58acfb83ffe69b9a0be305371d66",
    "prob_phoc-0.2.0": "9a6143f9cfdbbd94d53b97a88bd506b1c917dfce6b1bc9b45291931cf8253c22",
    "spatial_correlation_sampler-0.5.0": "872d720d3740f3caf0d15620af5180af8a1971568f9c7cda3664757262688d11",
    "torch_projectors-0.13.1": "c71048c7ca4d7b9fc216042eeba64e2d80bae24b350b303bffcd19001dd88e45",
    "torch_sparse_solve-0.0.5": "669122c4d582dec355cacf866a596c82c7f5ddda3fb1494289d9c7fd4797e788",
}
SIXTH = {
    "MinkowskiEngine-0.5.4": "b1879c00d0b0b1d30ba622cce239886a7e3c78ee9da1064cdfe2f64c2ab15f94",
    "compressai-1.2.8": "d90a923694b4b66c3e39bd90316e7f177a620787190ca7550731fc16c1bc7d5e",
    "ctcdecode-1.0.2": "d6139dfde78d774284e9fe5114dc2d7efc7209aa2d2e23ce9434a23f6d8f6866",
    "deformops-3.0.1": "d541728b2c29fb71f5a067ca5b281c7c2ab3e41d13b8db68795322c0e4490c43",
    "diffrp_nvdiffrast-0.3.3.1": "3c98d17810a2c90e61b3a1a931ba5e17542dcda84733b886bcd6e66b52c9976e",
    "evnn_pytorch-0.2.0": "10e72dff940b6c2786e7dc0828a72801bd52d32caaf71ada52773832fb6461da",
    "fast_rnnt-1.3": "e8758e43e074daec17cbb8fd4c50026045b3b35ed88728854fdbe3590087f0a9",
    "pointops-yoda-0.0.0.post2": "7857a616ece8fe78f71d1ef155c6a83142ef779fe02825e1ae4f05ee392d6218",
    "pytorch_block_sparse-0.1.2": "ca4a5c1dde96ac01c007f209067b2bbaee311a8699eba1eef712faef7f97df1f",
    "sphericart_torch-2.0.4": "1f45cbbef43e80f4b7212cdffcc0b15b15ff048d53452b513c203f85929ea8a0",
    "torch_bessel-0.0.10": "69952de368b8d11c0ef6fa3c452f24e55b000834431c225093cd039340a471c6",
    "torch_chamfer_dist-0.1.1": "88d6f8cae62729bbdb9c8da3a012b0fd4b9b4c086f273976cc9853341d952f29",
    "torch_fps-0.6.0": "8006683eed8dc0fecde2cf9eaaad0cc3e61c4722f0ce14431dd1eaae6615e7cb",
    "torch_ms_deform_attn-0.1.1": "1bdc6ada8bef37c417def944a38593199e2f2438f65545af4b0a9e3af1b8c711",
    "torchdtw-0.4.2": "62ceaf0e54e46b6250a6f507dcf266597d9a48a336caea0494e2f411614d82d9",
    "torchmorph-0.1.6": "1f41c71f4909f722233e44d4234d0a1567b5a15364aec6c0e0bdfd7c3a5b80f7",
    "triple_walk-0.0.4": "81b2c5db18fe658b4ff1c91b02e36439b413dd9cf493589940b4f9a85b67b69d",
    "tvdcn-1.1.0": "7e9d9fd464551cf6ad8abf21ccb99e9f480e4a95b88455a0df9dcbe128207a37",
    "vision3d-0.5.2": "31cb585e5fbb37e834326302528d882166be4344f8d8ddc76ac3fb79c92becfc",
}
DIGESTS = FIRST | SECOND | THIRD | FOURTH | FIFTH | SIXTH


def archive(name: str, folder: Path) -> Path:
    """Returns a project's source distribution, downloaded by pip and compared with its digest."""
    path = folder / f"{name}.tar.gz"
    if not path.exists():
        project, _, version = name.rpartition("-")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        command = [*pip, "--no-binary", ":all:", "--dest", str(folder), f"{project}=={version}"]
        subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin"})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != DIGESTS[name]:
        raise RuntimeError(f"{path.name} has the digest {digest}, expected {DIGESTS[name]}")
    return path


def run(names: Sequence[str], folder: Path) -> int:
    """Judges projects, and prints what keeps each. Returns how many do not compile on the facade as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    kept, chosen = 0, names or list(DIGESTS)
    for name in chosen:
        command = [sys.executable, "-m", "opforge", "why-not", "--cpu", "--json", str(archive(name, folder))]
        ended = subprocess.run(command, capture_output=True, text=True)
        found = json.loads(ended.stdout)
        if "obstacles" not in found:
            raise RuntimeError(f"{name}: {found['message']}")
        kept += ended.returncode != 0
        print(f"{name}: {len(found['sources'])} sources, {len(found['obstacles'])} lines, exit {ended.returncode}")
        for text in found["not_judged"]:
            print(f"  not judged: {text}")
        for entry in found["obstacles"]:
            print(f"  {entry['path']}:{entry['line']}: {entry['construct']}: {entry['kind']}: {entry['reason']}")
    print(f"{len(chosen) - kept} of {len(chosen)} compile as they are")
    return kept
