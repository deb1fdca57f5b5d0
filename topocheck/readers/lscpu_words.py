"""lscpu's words in the languages that util-linux 2.38 translates them to, as far as they are read (its po/*.po)."""

from __future__ import annotations

import re

WORDS = {
    "On-line CPU(s) list": (
        "Liste der Online-CPU(s)", "在线 CPU 列表", "Liste de processeur(s) en ligne",
        "オンラインになっている CPU のリスト", "Lista de la(s) CPU(s) en línea", "Lista de CPU(s) on-line",
        "Lista aktywnych CPU",
    ),
    "Vendor ID": (
        "Anbieterkennung", "厂商 ID", "Identifiant constructeur", "ベンダー ID", "ID прроизводителя",
        "ID de fabricante", "ID de fornecedor", "ID producenta",
    ),
    "Model name": (
        "Modellname", "型号名称", "Nom de modèle", "モデル名", "Имя модели", "Nombre del modelo", "Nome do modelo",
        "Nazwa modelu",
    ),
    "CPU family": (
        "Prozessorfamilie", "CPU 系列", "Famille de processeur", "CPU ファミリー", "Семейство ЦПУ",
        "Familia de CPU", "Família da CPU", "Rodzina CPU",
    ),
    "Model": ("Modell", "型号", "Modèle", "モデル", "Модель", "Modelo"),
    "Core(s) per socket": (
        "Kern(e) pro Sockel", "每个座的核数", "Cœur(s) par socket", "ソケットあたりのコア数", "Ядер на сокет",
        "Núcleo(s) por «socket»", "Núcleo(s) por soquete", "Rdzeni na gniazdo",
    ),
    "Hypervisor vendor": (
        "Hypervisor-Anbieter", "超管理器厂商", "Constructeur d'hyperviseur", "ハイパーバイザのベンダー",
        "Разработчик гипервизора", "Fabricante del hipervisor", "Fabricante do hipervisor",
        "Producent hipernadzorcy",
    ),
    "NUMA node(s)": (
        "NUMA-Knoten", "NUMA 节点", "Nœud(s) NUMA", "NUMA ノード数", "Modo(s) NUMA", "Nó(s) de NUMA", "Węzłów NUMA",
    ),
    "Flags": ("Markierungen", "标记", "Drapeaux", "フラグ", "Флаги", "Indicadores", "Opções", "Flagi"),
}  # fmt: skip
"""English label -> the same in German, Chinese, French, Japanese, Russian, Spanish, Portuguese and Polish."""
_ENGLISH = {word: name for name, words in WORDS.items() for word in words}
_NODE = re.compile(r"(?=.*NUMA)\D{1,30}([0-9]{1,4})(?!.*[0-9]).{0,20}$")
"""`NUMA node0 CPU(s)`, `NUMA-Knoten0 CPU(s)`, `Nœud NUMA 0 de processeur(s)`, `CPU(s) de nó0 NUMA`."""


def english(label: str) -> str:
    """Return a label as lscpu has it in English; as it is where it is not known."""
    if m := _NODE.match(label):
        return f"NUMA node{int(m[1])} CPU(s)"
    return _ENGLISH.get(label, label)
